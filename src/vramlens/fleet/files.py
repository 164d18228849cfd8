"""Files of a job: which recording and which flight record belong to which rank, and what is not
there.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vramlens.errors import InputError, VramlensError
from vramlens.read.error_file import is_error_file
from vramlens.read.flight_record import is_flight_record
from vramlens.read.source import open_source
from vramlens.read.values import MOST_RANKS
from vramlens.trace.meta import Meta
from vramlens.units import counted, listed

_ENDINGS = re.compile(r"(?i)\.(?:vram|(?:pickle|pkl|json)(?:\.(?:xz|gz|zst))?)$")
_HEAD_BYTES = 1 << 16
_MOST_NAMED = 5
_NEVER, _APART_US = 1 << 62, 60_000_000
# "rank0003", "rank_3", "global-rank 3", "r3" between separators; the last such in the name counts.
_RANK = re.compile(r"(?i)rank[_\-. ]?0*(\d{1,7})(?!\d)|(?:^|[_\-./])r0*(\d{1,7})(?=[_\-./]|$)")
# torchrun's log folder: attempt_0/3/error.json, where 3 is the rank on its machine.
_LOCAL = re.compile(r"attempt_\d+[/\\](\d{1,7})[/\\]error\.json$")
_FLIGHT_NAME = re.compile(r"(?i)nccl|flight|comm_lib_trace")
# NCCL's own names end in the rank: nccl_trace_rank_3, comm_lib_trace_rank_3, and no ending at all.
_FLIGHT_PLAIN = re.compile(r"(?i)(?:nccl|comm_lib)_trace_rank_?\d+$")


@dataclass(frozen=True, slots=True)
class RankFile:
    """What there is of one rank.

    Attributes:
        rank: its number.
        recording: the file; None where there is only a flight record.
        flight: its flight record; None where there is none.
        error: its error file; None where there is none.
    """

    rank: int
    recording: str | None
    flight: str | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class JobFiles:
    """The files of a job.

    Attributes:
        ranks: by number, ascending.
        world_size: how many ranks the job had, where a file says so.
        notes: what is odd about the files, one sentence each.
        jobs: where they are of several jobs, the folder of each; else nothing.
    """

    ranks: tuple[RankFile, ...]
    world_size: int | None
    notes: tuple[str, ...]
    jobs: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks of which there is nothing."""
        known = {one.rank for one in self.ranks}
        last = max([*known, (self.world_size or 0) - 1], default=-1)
        return tuple(rank for rank in range(last + 1) if rank not in known)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A file that was looked at."""

    path: str
    kind: str  # "recording", "flight record" or "error file"
    rank: int | None
    meta: Meta | None


def find_ranks(paths: Sequence[str | os.PathLike[str]]) -> JobFiles:
    """The ranks' files among some files and folders.

    A rank's number is what its recording says, else what the file's name says (``rank3.pickle``),
    else its place among the names in order.

    Raises:
        InputError: a path is not there, or none of them is a recording or a flight record.
    """
    seen, notes = [], []
    names = [os.fspath(path) for path in paths]
    named = set(names)
    for path in _files(names):
        try:
            found = _look(path)
        except VramlensError as error:
            notes.append(f"left out: {error}")
            continue
        if found is not None:
            seen.append(found)
        elif path in named:  # whatever else lies in a folder is nobody's concern
            notes.append(f"left out: {path}: neither a recording nor a flight record")
    if not seen:
        about = f" ({notes[0]})" if notes else ""
        raise InputError(f"{', '.join(names)}: holds no recording and no flight record{about}")
    by_kind = {}
    for kind in ("recording", "flight record", "error file"):
        by_kind[kind], more = _numbered([one for one in seen if one.kind == kind], kind)
        notes += more
    recordings, flights, errors = by_kind.values()
    sizes = {
        one.meta.world_size
        for one in recordings.values()
        if one.meta is not None and one.meta.world_size
    }
    if len(sizes) > 1:
        notes.append(
            f"the recordings say different numbers of ranks ({', '.join(map(str, sorted(sizes)))}): of two runs?"
        )
    notes += _of_earlier(recordings)
    versions = {
        one.meta.torch for one in recordings.values() if one.meta is not None and one.meta.torch
    }
    if len(versions) > 1:
        notes.append(f"the ranks ran different versions of PyTorch ({', '.join(sorted(versions))})")
    return JobFiles(
        tuple(
            RankFile(
                rank,
                recordings[rank].path if rank in recordings else None,
                flights[rank].path if rank in flights else None,
                errors[rank].path if rank in errors else None,
            )
            for rank in sorted({*recordings, *flights, *errors})
        ),
        max(sizes, default=None),
        tuple(notes),
        _jobs([one for one in seen if one.kind != "error file"]),  # of each attempt there is one
    )


def _files(paths: Iterable[str | os.PathLike[str]]) -> list[str]:
    found: list[str] = []
    for path in [os.fspath(each) for each in paths]:
        if os.path.isdir(path):
            inside = sorted(
                str(one)
                for one in Path(path).rglob("*")
                if _may_be_one(one.name) and os.path.isfile(one)
            )
            found += inside
        elif os.path.exists(path):
            found.append(path)
        else:
            raise InputError(f"{path}: no such file or directory")
    return list(dict.fromkeys(found))


def _may_be_one(name: str) -> bool:
    return bool(_ENDINGS.search(name) or _FLIGHT_PLAIN.search(name)) and not name.startswith(".")


def _look(path: str) -> _Seen | None:
    """What a file is, from its first bytes and its name; None if it is neither a recording nor a
    flight record.

    Raises:
        VramlensError: it cannot be read.
    """
    with open_source(path) as source:
        if source.members is not None:
            meta = source.members.meta
            rank = None if meta is None else meta.rank
            return _Seen(path, "recording", _rank_of(path) if rank is None else rank, meta)
        head = source.stream.peek(_HEAD_BYTES)[:_HEAD_BYTES]
    if source.kind in ("pickle", "json") and is_flight_record(head):
        return _Seen(path, "flight record", _rank_of(path), None)
    if source.kind == "json" and is_error_file(head):
        return _Seen(path, "error file", _rank_of(path, _LOCAL), None)
    if source.kind in ("pickle", "json") and _FLIGHT_NAME.search(os.path.basename(path)):
        return _Seen(path, "flight record", _rank_of(path), None)
    if source.kind == "pickle":
        return _Seen(path, "recording", _rank_of(path), None)
    return None


def _rank_of(path: str, pattern: re.Pattern[str] | None = None) -> int | None:
    found = list(_RANK.finditer(os.path.basename(path))) or list(_RANK.finditer(path))
    if not found and pattern is not None:
        found = list(pattern.finditer(path))
    number = None if not found else int(next(digits for digits in found[-1].groups() if digits))
    return number if number is None or number <= MOST_RANKS else None


def _numbered(seen: Sequence[_Seen], what: str) -> tuple[dict[int, _Seen], list[str]]:
    """One file a rank; and what was odd."""
    notes = []
    by_rank: dict[int, list[_Seen]] = defaultdict(list)
    unnamed = [one for one in seen if one.rank is None]
    for one in seen:
        if one.rank is not None:
            by_rank[one.rank].append(one)
    if unnamed:
        free = (
            number
            for number in range(len(seen) + max(by_rank, default=-1) + 1)
            if number not in by_rank
        )
        for number, one in zip(list(free), unnamed, strict=False):
            by_rank[number].append(one)
        if len(seen) > 1:
            notes.append(
                f"{counted(len(unnamed), what)} without a rank in the name: numbered in the order of names"
            )
    chosen = {rank: max(files, key=_worth) for rank, files in by_rank.items()}
    doubled = [rank for rank, files in by_rank.items() if len(files) > 1]
    if doubled:
        named = ", ".join(os.path.basename(chosen[rank].path) for rank in doubled[:_MOST_NAMED])
        left = len(seen) - len(chosen)
        note = f"{counted(len(doubled), 'rank')} with more than one {what}: taken {named}; {left:,} left out"
        if len({os.path.dirname(one.path) for rank in doubled for one in by_rank[rank]}) > 1:
            note += "; folders of several jobs are exported or compared one job at a time"
        notes.append(note)
    return chosen, notes


def _jobs(seen: Sequence[_Seen]) -> tuple[str, ...]:
    """The folders of the jobs, where a rank has files of one kind in several; else nothing."""
    places: dict[tuple[str, int], set[str]] = defaultdict(set)
    for one in seen:
        if one.rank is not None:
            places[one.kind, one.rank].add(_job_folder(one.path))
    if all(len(folders) < 2 for folders in places.values()):
        return ()
    return tuple(sorted(set().union(*places.values())))


def _job_folder(path: str) -> str:
    """The folder of a file's job: its own, or that above where only the folder says the rank."""
    folder = os.path.dirname(path)
    named = (
        _RANK.search(os.path.basename(path)) is None
        and _RANK.search(os.path.basename(folder)) is not None
    )
    return (os.path.dirname(folder) if named else folder) or os.curdir


def _of_earlier(recordings: Mapping[int, _Seen]) -> list[str]:
    """Which recordings are older than others of their machine, in one sentence: a folder was
    used twice.
    """
    began: dict[str, int] = defaultdict(int)
    metas = {
        rank: one.meta for rank, one in recordings.items() if one.meta is not None and one.meta.host
    }
    for meta in metas.values():
        began[meta.host or ""] = max(began[meta.host or ""], meta.started_us or 0)
    old = [
        rank
        for rank, meta in metas.items()
        if (meta.written_us or _NEVER) + _APART_US < began[meta.host or ""]
    ]
    if not old:
        return []
    named = listed(old, _MOST_NAMED)
    was = "rank " + named + " was" if len(old) == 1 else "ranks " + named + " were"
    return [f"{was} written before other ranks of the same machine began: of an earlier run?"]


def _worth(one: _Seen) -> tuple[bool, int, str]:
    """Of several files of a rank the one to take: that of its failure, else the latest."""
    meta = one.meta
    written = None if meta is None else meta.written_us
    if written is None:
        with contextlib.suppress(OSError):  # it has gone since
            written = int(os.path.getmtime(one.path) * 1e6)
    return (meta is not None and meta.trigger == "oom", written or 0, one.path)
