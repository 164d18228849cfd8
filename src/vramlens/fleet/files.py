"""Files of a job: which recording and which flight record belong to which rank, and what is not
there.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vramlens.errors import InputError, VramlensError
from vramlens.fleet.rank_files import (
    ERROR_FILE,
    FLIGHT_RECORD,
    RECORDING,
    CandidateFile,
    examine,
    may_be_of_rank,
)
from vramlens.units import counted, listed

_MOST_NAMED = 5
_NEVER, _APART_US = 1 << 62, 60_000_000


@dataclass(frozen=True, slots=True)
class RankFile:
    """The files of one rank.

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
        present = {files.rank for files in self.ranks}
        last = max([*present, (self.world_size or 0) - 1], default=-1)
        return tuple(rank for rank in range(last + 1) if rank not in present)


def find_ranks(paths: Sequence[str | os.PathLike[str]]) -> JobFiles:
    """The ranks' files among some files and folders.

    A rank's number is what its recording says, else what the file's name says (``rank3.pickle``),
    else its place among the names in order.

    Raises:
        InputError: a path is not there, or none of them is a recording or a flight record.
    """
    candidates, notes = _candidates([os.fspath(path) for path in paths])
    by_kind: dict[str, dict[int, CandidateFile]] = {}
    for kind in (RECORDING, FLIGHT_RECORD, ERROR_FILE):
        files = [candidate for candidate in candidates if candidate.kind == kind]
        by_kind[kind], notes_of_kind = _by_rank(files, kind)
        notes += notes_of_kind
    recordings = by_kind[RECORDING]
    paths_of = {
        kind: {rank: candidate.path for rank, candidate in files.items()}
        for kind, files in by_kind.items()
    }
    return JobFiles(
        ranks=tuple(
            RankFile(
                rank=rank,
                recording=paths_of[RECORDING].get(rank),
                flight=paths_of[FLIGHT_RECORD].get(rank),
                error=paths_of[ERROR_FILE].get(rank),
            )
            for rank in sorted(set().union(*by_kind.values()))
        ),
        world_size=max(_world_sizes(recordings), default=None),
        notes=(*notes, *_notes_of_runs(recordings)),
        # Of error files there is one of each attempt.
        jobs=_jobs(candidate for candidate in candidates if candidate.kind != ERROR_FILE),
    )


def _candidates(paths: Sequence[str]) -> tuple[list[CandidateFile], list[str]]:
    """The files that are of a rank, and a note on each that was named and is not.

    Raises:
        InputError: there are none.
    """
    candidates, notes, named_paths = [], [], set(paths)
    for path in dict.fromkeys(_files(paths)):
        try:
            candidate = examine(path)
        except VramlensError as error:
            notes.append(f"skipped: {error}")
            continue
        if candidate is not None:
            candidates.append(candidate)
        elif path in named_paths:  # whatever else lies in a folder is nobody's concern
            notes.append(f"skipped: {path}: neither a recording nor a flight record")
    if not candidates:
        about = f" ({notes[0]})" if notes else ""
        raise InputError(f"{', '.join(paths)}: contains no recording and no flight record{about}")
    return candidates, notes


def _files(paths: Iterable[str]) -> Iterator[str]:
    """Yields the files among some paths, and those below the folders that may be of a rank."""
    for path in paths:
        if os.path.isdir(path):
            inside = (file for file in Path(path).rglob("*") if may_be_of_rank(file.name))
            yield from sorted(str(file) for file in inside if os.path.isfile(file))
        elif os.path.exists(path):
            yield path
        else:
            raise InputError(f"{path}: no such file or directory")


def _by_rank(
    files: Sequence[CandidateFile], kind: str
) -> tuple[dict[int, CandidateFile], list[str]]:
    """One file a rank; and what was odd."""
    notes = []
    by_rank: dict[int, list[CandidateFile]] = defaultdict(list)
    for file in files:
        if file.rank is not None:
            by_rank[file.rank].append(file)
    unnumbered = [file for file in files if file.rank is None]
    if unnumbered:
        numbers = range(len(files) + max(by_rank, default=-1) + 1)
        free_numbers = [number for number in numbers if number not in by_rank]
        by_rank |= {number: [file] for number, file in zip(free_numbers, unnumbered, strict=False)}
        if len(files) > 1:
            notes.append(
                f"{counted(len(unnumbered), kind)} without a rank in the name, numbered in "
                "alphabetical order"
            )
    best = {rank: max(rivals, key=lambda file: file.worth) for rank, rivals in by_rank.items()}
    doubled = {rank: rivals for rank, rivals in by_rank.items() if len(rivals) > 1}
    if doubled:
        notes.append(_note_of_doubled(doubled, best, kind, len(files) - len(best)))
    return best, notes


def _note_of_doubled(
    doubled: Mapping[int, Sequence[CandidateFile]],
    best: Mapping[int, CandidateFile],
    kind: str,
    left_out: int,
) -> str:
    names = ", ".join(os.path.basename(best[rank].path) for rank in list(doubled)[:_MOST_NAMED])
    folders = {os.path.dirname(file.path) for rivals in doubled.values() for file in rivals}
    note = (
        f"{counted(len(doubled), 'rank')} with more than one {kind}: taken {names};"
        f" {left_out:,} left out"
    )
    if len(folders) > 1:
        note += "; folders of several jobs are exported or compared one job at a time"
    return note


def _jobs(files: Iterable[CandidateFile]) -> tuple[str, ...]:
    """The folders of the jobs, where a rank has files of one kind in several; else nothing."""
    folders: dict[tuple[str, int], set[str]] = defaultdict(set)
    for file in files:
        if file.rank is not None:
            folders[file.kind, file.rank].add(file.job_folder)
    if all(len(folders_of_rank) < 2 for folders_of_rank in folders.values()):
        return ()
    return tuple(sorted(set().union(*folders.values())))


def _world_sizes(recordings: Mapping[int, CandidateFile]) -> set[int]:
    """The numbers of ranks that recordings say."""
    metas = (file.meta for file in recordings.values())
    return {meta.world_size for meta in metas if meta is not None and meta.world_size}


def _notes_of_runs(recordings: Mapping[int, CandidateFile]) -> Iterator[str]:
    """Yields what tells that the recordings are not of one run."""
    world_sizes = sorted(_world_sizes(recordings))
    if len(world_sizes) > 1:
        yield (
            "the recordings contain different numbers of ranks "
            f"({', '.join(map(str, world_sizes))}): are they from two runs?"
        )
    yield from _note_of_earlier(recordings)
    metas = [file.meta for file in recordings.values()]
    versions = sorted({meta.torch for meta in metas if meta is not None and meta.torch})
    if len(versions) > 1:
        yield f"the ranks ran different versions of PyTorch ({', '.join(versions)})"


def _note_of_earlier(recordings: Mapping[int, CandidateFile]) -> list[str]:
    """One sentence on recordings that are older than others of their machine: a folder was used
    twice.
    """
    started_us: dict[str, int] = defaultdict(int)
    written_us: dict[int, tuple[str, int]] = {}
    for rank, file in recordings.items():
        meta = file.meta
        if meta is not None and meta.host:
            started_us[meta.host] = max(started_us[meta.host], meta.started_us or 0)
            written_us[rank] = meta.host, meta.written_us or _NEVER
    earlier = [
        rank
        for rank, (host, time_us) in written_us.items()
        if time_us + _APART_US < started_us[host]
    ]
    if not earlier:
        return []
    subject = "rank" if len(earlier) == 1 else "ranks"
    verb = "was" if len(earlier) == 1 else "were"
    return [
        f"{subject} {listed(earlier, _MOST_NAMED)} {verb} written before other ranks of the "
        "same machine started: from an earlier run?"
    ]
