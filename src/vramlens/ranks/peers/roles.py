"""Roles: ranks of one job that run other programs than each other, such as the actors, critics and
reward models of reinforcement learning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, takewhile

from vramlens.ranks.rank_summary import FrameUse, RankSummary

_MAIN_SHARE = 0.75
"""A program's own file calls nearly all that it does; another implementation of a part, such as of
attention, less.
"""
_MOST_ROLES = 64
"""More programs than this are no roles of one job."""


def roles_of_code(ranks: Sequence[RankSummary]) -> tuple[tuple[int, ...], ...]:
    """The ranks by the program that they run, where each role has a file of its own: nearly all
    that its ranks request is requested through it, and most other ranks do not have it. () where they
    all run one.

    What some ranks do beside the work of all is no role: the others have no file of their own.
    """
    main_files = {summary.rank: _main_files(summary) for summary in ranks}
    if len(set(main_files.values())) < 2:
        return ()
    running = _ranks_by_file(main_files.items())
    having = _ranks_by_file((summary.rank, _files(summary.frames)) for summary in ranks)
    own = {
        frozenset(members)
        for file, members in running.items()
        if 2 * len(having[file] - members) < len(ranks) - len(members)
    }
    if not 1 < len(own) <= _MOST_ROLES:
        return ()
    # A rank may also come through a file that no other of its role has.
    roles = [members for members in own if not any(members < other for other in own)]
    in_roles = sorted(chain.from_iterable(roles))
    if in_roles != sorted(main_files):
        return ()
    return tuple(sorted(tuple(sorted(members)) for members in roles))


def _main_files(summary: RankSummary) -> frozenset[str]:
    """The files that nearly all that a rank's code requests is requested through."""
    most_bytes = max((frame.total_bytes for frame in summary.frames), default=0)
    # The frame with most bytes comes first.
    least_bytes = _MAIN_SHARE * most_bytes
    return _files(takewhile(lambda frame: frame.total_bytes > least_bytes, summary.frames))


def _files(frames: Iterable[FrameUse]) -> frozenset[str]:
    return frozenset(frame.place.file for frame in frames)


def _ranks_by_file(files_of_ranks: Iterable[tuple[int, frozenset[str]]]) -> dict[str, set[int]]:
    ranks: dict[str, set[int]] = defaultdict(set)
    for rank, files in files_of_ranks:
        for file in files:
            ranks[file].add(rank)
    return ranks
