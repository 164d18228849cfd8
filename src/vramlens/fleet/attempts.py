"""Attempts: the recordings of one job's starts, told apart, so that no two of them are mixed.

A launcher that restarts a job, perhaps with fewer ranks, leaves the recordings of both starts in
one folder.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from vramlens.fleet.process import Process
from vramlens.fleet.rank_files import CandidateFile


def attempts_of(recordings: Sequence[CandidateFile]) -> list[list[CandidateFile]]:
    """The recordings of each attempt, the earliest first; recordings that do not say when they
    were made are of the last.
    """
    timed = [file for file in recordings if _start(file) is not None]
    untimed = [file for file in recordings if _start(file) is None]
    if not timed or not _are_of_one_job(timed):
        return [list(recordings)]
    by_launch: dict[tuple[int | None, int | None], list[CandidateFile]] = defaultdict(list)
    for file in timed:
        process = _process(file)
        by_launch[process.world_size, process.attempt].append(file)
    attempts = [part for files in by_launch.values() for part in _split_by_time(files)]
    attempts.sort(key=_first_start)
    if not all(_ended_before(earlier, later) for earlier, later in pairwise(attempts)):
        return [list(recordings)]
    attempts[-1] += untimed
    return attempts


def _first_start(files: Sequence[CandidateFile]) -> int:
    return min(_start(file) or 0 for file in files)


def _ended_before(earlier: Sequence[CandidateFile], later: Sequence[CandidateFile]) -> bool:
    """True where a process of the earlier had written its recording when the later began."""
    ends = [_process(file).written_us or 0 for file in earlier]
    return min(ends) <= _first_start(later)


def _process(file: CandidateFile) -> Process:
    assert file.process is not None
    return file.process


def _start(file: CandidateFile) -> int | None:
    return None if file.process is None or file.rank is None else file.process.started_us


def _are_of_one_job(files: Sequence[CandidateFile]) -> bool:
    """True where the recordings lie in one folder, or the same launcher started them."""
    if len({file.job_folder for file in files}) < 2:
        return True
    names = {_process(file).job for file in files}
    if len(names) == 1 and None not in names:
        return True
    launchers: dict[str | None, set[int | None]] = defaultdict(set)
    for file in files:
        launchers[_process(file).host].add(_process(file).launcher_pid)
    return all(len(pids) == 1 and None not in pids for pids in launchers.values())


def _split_by_time(files: Sequence[CandidateFile]) -> list[list[CandidateFile]]:
    """The recordings of processes that may have run together, the earliest first.

    Where two processes had the same rank, the later one began after the earlier had ended; whatever
    else began after that end is of the later start, too.
    """
    border_us = _first_end_of_replaced(files)
    if border_us is None:
        return [list(files)]
    earlier = [file for file in files if (_start(file) or 0) < border_us]
    later = [file for file in files if (_start(file) or 0) >= border_us]
    if not earlier or not later:
        return [list(files)]
    return [earlier, *_split_by_time(later)]


def _first_end_of_replaced(files: Sequence[CandidateFile]) -> int | None:
    """The first moment at which another process took a rank over; None where none did."""
    starts_by_rank: dict[int, set[int]] = defaultdict(set)
    for file in files:
        if file.rank is not None:
            starts_by_rank[file.rank].add(_start(file) or 0)
    replaced = {rank: starts for rank, starts in starts_by_rank.items() if len(starts) > 1}
    if not replaced:
        return None
    second_us = min(sorted(starts)[1] for starts in replaced.values())
    ends = [
        _process(file).written_us
        for file in files
        if (_start(file) or 0) < second_us and (file.rank or 0) in replaced
    ]
    # Not after the restart itself: a recording may be written late.
    return min([second_us, *filter(None, ends)])
