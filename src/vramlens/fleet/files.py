"""Files of a job: which recording and which flight record belong to which rank, and what is not
there.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

from vramlens.errors import InputError, VramlensError
from vramlens.fleet.attempts import attempts_of
from vramlens.fleet.process import Process
from vramlens.fleet.rank_files import (
    ERROR_FILE,
    FLIGHT_RECORD,
    RECORDING,
    CandidateFile,
    examine,
    from_summary,
    may_be_of_rank,
    with_run_folders,
)
from vramlens.fleet.summary_file import ENDING, UnreadSummary, open_summary
from vramlens.ranks import RankSummary
from vramlens.units import agreeing, counted, listed

_MOST_NAMED = 5
_NEITHER = "neither a recording nor a flight record"
_OPENED_AT_ONCE, _OPENED_BY_A_THREAD = 16, 16
# torchrun's log folder has one of each attempt.
_ATTEMPT_FOLDER = re.compile(r"attempt_(\d{1,7})[/\\]")
_NEVER, _APART_US = 1 << 62, 60_000_000


@dataclass(frozen=True, slots=True)
class RankFile:
    """The files of one rank.

    Attributes:
        rank: its number.
        recording: the file; None where there is only a flight record.
        flight: its flight record; None where there is none.
        error: its error file; None where there is none.
        process: what wrote the recording, where that tells.
        summary: what lies beside the recording; None where it is to be read.
        is_profiler_trace: the recording is a trace of PyTorch's profiler.
    """

    rank: int
    recording: str | None
    flight: str | None
    error: str | None = None
    process: Process | None = None
    summary: RankSummary | None = None
    is_profiler_trace: bool = False


@dataclass(frozen=True, slots=True)
class JobFiles:
    """The files of an attempt of a job.

    Attributes:
        ranks: by number, ascending.
        world_size: how many ranks the job had, where a file says so.
        notes: what is odd about the files, one sentence each.
        jobs: where they are of several jobs, the folder of each; else nothing.
        attempt: which start of the job they are of, from 0.
        attempts: how many starts there are files of.
    """

    ranks: tuple[RankFile, ...]
    world_size: int | None
    notes: tuple[str, ...]
    jobs: tuple[str, ...] = ()
    attempt: int = 0
    attempts: int = 1

    @property
    def several_jobs(self) -> str:
        """How many jobs they are of, with the first folders; empty where it is one."""
        if not self.jobs:
            return ""
        return f"{counted(len(self.jobs), 'job')} ({listed(self.jobs, _MOST_NAMED)})"

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks of which there is nothing."""
        present = {files.rank for files in self.ranks}
        last = max([*present, (self.world_size or 0) - 1], default=-1)
        return tuple(rank for rank in range(last + 1) if rank not in present)

    @property
    def processes(self) -> list[Process]:
        """The processes that wrote the recordings, each with its rank."""
        return [
            replace(files.process, rank=files.rank)
            for files in self.ranks
            if files.process is not None
        ]


def find_ranks(paths: Sequence[str | os.PathLike[str]], attempt: int | None = None) -> JobFiles:
    """The ranks' files of one attempt among some files and folders.

    A rank's number is what its recording says, else what the file's name says (``rank3.pickle``),
    else its place among the names in order, numbers in them by their value.

    Args:
        paths: where to look.
        attempt: which start of the job, by the launcher's count; by default the last.

    Raises:
        InputError: a path is not there, none of them is a recording or a flight record, or there
            are no files of that attempt.
    """
    attempts = find_attempts(paths)
    if attempt is None:
        return attempts[-1]
    for files in attempts:
        if files.attempt == attempt:
            return files
    numbers = ", ".join(str(files.attempt) for files in attempts)
    raise InputError(f"no files of attempt {attempt}; there are those of {numbers}")


def find_attempts(paths: Sequence[str | os.PathLike[str]]) -> list[JobFiles]:
    """The ranks' files of each attempt among some files and folders, the earliest first.

    Raises:
        InputError: a path is not there, or none of them is a recording or a flight record.
    """
    candidates, notes = _candidates([os.fspath(path) for path in paths])
    attempts = attempts_of([file for file in candidates if file.kind == RECORDING])
    beside_recordings = [file for file in candidates if file.kind != RECORDING]
    numbers = _numbers_of(attempts)
    starts_us = [_first_start(files) for files in attempts]
    of_attempt: list[list[CandidateFile]] = [[] for _ in attempts]
    for file in beside_recordings:
        of_attempt[_attempt_of_other(file, numbers, starts_us)].append(file)
    several = _note_of_attempts(attempts, numbers)
    return [
        replace(
            _files_of_attempt([*recordings, *beside], [*notes, *several]),
            attempt=number,
            attempts=len(attempts),
        )
        for recordings, beside, number in zip(attempts, of_attempt, numbers, strict=True)
    ]


def _numbers_of(attempts: Sequence[Sequence[CandidateFile]]) -> list[int]:
    """The number of each attempt: as the launcher counts where that tells them apart."""
    counted_by_launcher = [
        max((_attempt_told(file) for file in files), default=-1) for files in attempts
    ]
    ascending = sorted(set(counted_by_launcher))
    if -1 not in ascending and ascending == counted_by_launcher:
        return counted_by_launcher
    return list(range(len(attempts)))


def _attempt_told(file: CandidateFile) -> int:
    attempt = None if file.process is None else file.process.attempt
    return -1 if attempt is None else attempt


def _first_start(files: Sequence[CandidateFile]) -> int:
    starts = [file.process.started_us for file in files if file.process is not None]
    return min((start for start in starts if start), default=0)


def _attempt_of_other(file: CandidateFile, numbers: Sequence[int], starts_us: Sequence[int]) -> int:
    """Which attempt a flight record or an error file belongs to: as torchrun's folder says, else
    the last that had begun when it was written.
    """
    match = _ATTEMPT_FOLDER.search(file.path)
    if match is not None and int(match[1]) in numbers:
        return numbers.index(int(match[1]))
    begun = [index for index, start_us in enumerate(starts_us) if start_us <= file.written_us]
    return begun[-1] if begun and len(numbers) > 1 else len(numbers) - 1


def _note_of_attempts(
    attempts: Sequence[Sequence[CandidateFile]], numbers: Sequence[int]
) -> list[str]:
    if len(attempts) < 2:
        return []
    sizes = ", ".join(
        f"{number} of {counted(len({file.rank for file in files}), 'rank')}"
        for number, files in zip(numbers, attempts, strict=True)
    )
    return [
        f"the job was started {len(attempts)} times (attempt {sizes}): each attempt has its own"
        " answer"
    ]


def _files_of_attempt(candidates: Sequence[CandidateFile], notes: list[str]) -> JobFiles:
    by_kind: dict[str, dict[int, CandidateFile]] = {}
    notes = [*notes]
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
                process=recordings[rank].process if rank in recordings else None,
                summary=recordings[rank].summary if rank in recordings else None,
                is_profiler_trace=rank in recordings and recordings[rank].is_profiler_trace,
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
    candidates, unread, skipped, named_paths = [], [], [], set(paths)
    for path, candidate in _examined(list(dict.fromkeys(_files(paths)))):
        if isinstance(candidate, str):
            unread.append(candidate)
        elif candidate is not None:
            candidates.append(candidate)
        elif path in named_paths:  # whatever else lies in a folder is nobody's concern
            skipped.append(f"skipped: {path}: {_NEITHER}")
    notes = [*unread, *skipped]
    if not candidates:
        if len(paths) == 1 and os.path.isfile(paths[0]) and not unread:
            raise InputError(f"{paths[0]}: is {_NEITHER}; name the ranks' files, or their folder")
        about = f" ({notes[0]})" if notes else ""
        raise InputError(f"{', '.join(paths)}: contains no recording and no flight record{about}")
    return with_run_folders(candidates), notes


def _examined(paths: Sequence[str]) -> Iterator[tuple[str, CandidateFile | str | None]]:
    """Yields each file: what it is, None for what is of no rank, and a note where it cannot be
    read.

    A recording with a current summary beside it is not opened. Files are opened side by side: on a
    file system of a network each takes its time.
    """
    summaries = [path for path in paths if path.endswith(ENDING)]
    with ThreadPoolExecutor(_OPENED_AT_ONCE) as threads:
        # Threads wait for files; what is in a summary is worked out here, where no other thread
        # asks for the interpreter's lock.
        summarised = map(from_summary, _unread_summaries(summaries, threads))
        by_recording = {file.path: file for file in summarised if file is not None}
        yield from by_recording.items()
        unsummarised = [
            path for path in paths if not path.endswith(ENDING) and path not in by_recording
        ]
        yield from zip(unsummarised, threads.map(_look, unsummarised), strict=True)


def _unread_summaries(paths: Sequence[str], threads: ThreadPoolExecutor) -> Iterator[UnreadSummary]:
    """Yields the summaries; those of one turn are opened together, as thousands of large files
    would fill the memory.
    """
    turn = _OPENED_AT_ONCE * _OPENED_BY_A_THREAD
    for first in range(0, len(paths), turn):
        starts = range(first, min(first + turn, len(paths)), _OPENED_BY_A_THREAD)
        parts = [paths[start : start + _OPENED_BY_A_THREAD] for start in starts]
        yield from chain.from_iterable(threads.map(_open_summaries, parts))


def _open_summaries(paths: Sequence[str]) -> list[UnreadSummary]:
    """The summaries of which the bytes can be read."""
    opened = []
    for path in paths:
        with suppress(OSError):
            opened.append(open_summary(path))
    return opened


def _look(path: str) -> CandidateFile | str | None:
    try:
        return examine(path)
    except VramlensError as error:
        return f"left out: {error}"


def _files(paths: Iterable[str]) -> Iterator[str]:
    """Yields the files among some paths, and those below the folders that may be of a rank."""
    for path in paths:
        if os.path.isdir(path):
            yield from sorted(_below(path))
        elif os.path.exists(path):
            yield path
        else:
            raise InputError(f"{path}: no such file or directory")


def _below(folder: str) -> Iterator[str]:
    for inner, _folders, names in os.walk(folder, followlinks=False):
        for name in names:
            path = os.path.join(inner, name)
            if may_be_of_rank(name) and os.path.isfile(path):
                yield path


def _by_rank(
    files: Sequence[CandidateFile], kind: str
) -> tuple[dict[int, CandidateFile], list[str]]:
    """One file a rank; and what was odd."""
    by_rank, notes = _rivals_by_rank(files, kind)
    best = {rank: max(rivals, key=lambda file: file.worth) for rank, rivals in by_rank.items()}
    doubled = {rank: rivals for rank, rivals in by_rank.items() if len(rivals) > 1}
    if doubled:
        notes.append(_note_of_doubled(doubled, best, kind, len(files) - len(best)))
    return best, notes


def _rivals_by_rank(
    files: Sequence[CandidateFile], kind: str
) -> tuple[dict[int, list[CandidateFile]], list[str]]:
    """The files of each rank; those without a rank get the numbers that are free."""
    by_rank: dict[int, list[CandidateFile]] = defaultdict(list)
    for file in files:
        if file.rank is not None:
            by_rank[file.rank].append(file)
    unnumbered = sorted((file for file in files if file.rank is None), key=_place_of_name)
    if not unnumbered:
        return by_rank, []
    numbers = range(len(files) + max(by_rank, default=-1) + 1)
    free_numbers = [number for number in numbers if number not in by_rank]
    by_rank |= {number: [file] for number, file in zip(free_numbers, unnumbered, strict=False)}
    if len(files) == 1:
        return by_rank, []
    without = counted(len(unnumbered), kind)
    return by_rank, [f"{without} without a rank in the name, numbered in the order of their names"]


def _place_of_name(file: CandidateFile) -> tuple[list[str | int], str]:
    """What sorts files by name: numbers in them by their value, so that 10 comes after 2."""
    parts = re.split("([0-9]+)", file.path)  # every other one is a number
    return [int(part) if at % 2 else part for at, part in enumerate(parts)], file.path


def _note_of_doubled(
    doubled: Mapping[int, Sequence[CandidateFile]],
    best: Mapping[int, CandidateFile],
    kind: str,
    left_out: int,
) -> str:
    names = ", ".join(os.path.basename(best[rank].path) for rank in list(doubled)[:_MOST_NAMED])
    return (
        f"{counted(len(doubled), 'rank')} with more than one {kind}: taken {names};"
        f" {left_out:,} left out"
    )


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
    processes = (file.process for file in recordings.values())
    return {
        process.world_size for process in processes if process is not None and process.world_size
    }


def _notes_of_runs(recordings: Mapping[int, CandidateFile]) -> Iterator[str]:
    """Yields what tells that the recordings are not of one run."""
    world_sizes = sorted(_world_sizes(recordings))
    if len(world_sizes) > 1:
        yield (
            "the recordings contain different numbers of ranks "
            f"({', '.join(map(str, world_sizes))}): are they from two runs?"
        )
    yield from _note_of_earlier(recordings)
    processes = [file.process for file in recordings.values()]
    versions = sorted({process.torch for process in processes if process and process.torch})
    if len(versions) > 1:
        yield f"the ranks ran different versions of PyTorch ({', '.join(versions)})"


def _note_of_earlier(recordings: Mapping[int, CandidateFile]) -> list[str]:
    """One sentence on recordings that are older than others of their machine: a folder was used
    twice.
    """
    started_us: dict[str, int] = defaultdict(int)
    written_us: dict[int, tuple[str, int]] = {}
    for rank, file in recordings.items():
        process = file.process
        if process is not None and process.host:
            host = process.host
            started_us[host] = max(started_us[host], process.started_us or 0)
            written_us[rank] = host, process.written_us or _NEVER
    earlier = [
        rank
        for rank, (host, time_us) in written_us.items()
        if time_us + _APART_US < started_us[host]
    ]
    if not earlier:
        return []
    subject = agreeing(len(earlier), "rank", "ranks")
    verb = agreeing(len(earlier), "was", "were")
    return [
        f"{subject} {listed(earlier, _MOST_NAMED)} {verb} written before other ranks of the "
        "same machine started: from an earlier run?"
    ]
