"""Roles: ranks of one job that run other programs than each other, such as the actors, critics and
reward models of reinforcement learning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from itertools import chain, takewhile
from typing import TypeVar

from vramlens.ranks.rank_summary import FrameUse, RankSummary

_MAIN_SHARE = 0.75
"""A program's own file calls nearly all that it does; another implementation of a part, such as of
attention, less.
"""
_PART_SHARE = 0.05
"""A part of the work that some ranks do in place of others calls at least so much of it."""
_FEWEST_PARTS = 3
"""Of two ways to do a part, one may be a fault; of three, each is as it should be."""
_OWN_SHARE = 0.25
"""Where process groups tell the roles, so much of what each does is in files of its own."""
_MOST_ROLES = 64
"""More programs than this are no roles of one job."""

_TWO, _OWN_OF_TWO = 2, 2 / 3
"""Of the peak of each of two ranks: a fault of one is no work of the other."""


def roles_of_code(ranks: Sequence[RankSummary]) -> tuple[tuple[int, ...], ...]:
    """The ranks by the program that they run, where each role has a file of its own: nearly all
    that its ranks request is requested through it, and most other ranks do not have it. () where they
    all run one.

    What some ranks do beside the work of all is no role: the others have no file of their own.
    """
    return _roles_by_files(ranks, _MAIN_SHARE)


def roles_of_parts(ranks: Sequence[RankSummary]) -> tuple[tuple[int, ...], ...]:
    """The ranks by the part that they do in place of others, such as the task that each trains in
    a model of several; each has a file of its own, and there are three and more. Else ().
    """
    roles = _roles_by_files(ranks, _PART_SHARE)
    return roles if len(roles) >= _FEWEST_PARTS else ()


def roles_of_groups(
    ranks: Sequence[RankSummary], groups: Iterable[Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    """The process groups, and the ranks in none, where each of three and more does much in files
    that no other has; else ().
    """
    inside = {frozenset(members) for members in groups if 1 < len(members) < len(ranks)}
    widest: list[frozenset[int]] = []
    in_widest: set[int] = set()
    for members in sorted(inside, key=lambda members: (-len(members), min(members))):
        if not members <= in_widest:
            widest.append(members)
            in_widest |= members
    grouped = sorted(chain.from_iterable(widest))
    if not widest or len(grouped) != len(set(grouped)):
        return ()
    alone = {summary.rank for summary in ranks}.difference(grouped)
    roles = [*widest, *(frozenset({rank}) for rank in alone)]
    shares = {summary.rank: _shares_of_files(summary, _PART_SHARE) for summary in ranks}
    is_several = _FEWEST_PARTS <= len(roles) <= _MOST_ROLES
    if not is_several or not all(_has_own(role, shares) for role in roles):
        return ()
    return tuple(sorted(tuple(sorted(members)) for members in roles))


def _has_own(role: Set[int], shares: Mapping[int, Mapping[str, float]]) -> bool:
    """True if all ranks of a role do much in a file that no other rank has."""
    first, *others = (shares[rank] for rank in role)
    own = {
        file
        for file, share in first.items()
        if min(share, *(of_rank.get(file, 0) for of_rank in others), 1) >= _OWN_SHARE
    }
    for rank, of_rank in shares.items():
        if not own:
            return False
        if rank not in role:
            own -= of_rank.keys()
    return bool(own)


def roles_of_calls(ranks: Sequence[RankSummary]) -> tuple[tuple[int, ...], ...]:
    """The ranks by the call through which nearly all is requested that they request, such as one of a
    worker's loop; each role has a call that the others do not make, and several ranks, unless there
    are two in all. () where they all make one.

    Where only some compute activations again, their calls are other ways to do the same work.
    """
    if len({bool(summary.recomputed_bytes) for summary in ranks}) > 1:
        return ()
    roles = _roles_by(ranks, _MAIN_SHARE, lambda frame: frame.place)
    are_several = len(ranks) == _TWO or all(len(role) > 1 for role in roles)
    return roles if are_several else ()


def _roles_by_files(ranks: Sequence[RankSummary], share: float) -> tuple[tuple[int, ...], ...]:
    """The ranks by the files through which a share and more of what each requests is requested."""
    return _roles_by(ranks, share, lambda frame: frame.place.file)


def _roles_by(
    ranks: Sequence[RankSummary], share: float, part_of: Callable[[FrameUse], Hashable]
) -> tuple[tuple[int, ...], ...]:
    """The ranks by the parts of the program through which a share and more of what each requests is
    requested.
    """
    main_parts = {
        summary.rank: frozenset(_shares_of_parts(summary, share, part_of)) for summary in ranks
    }
    if len(set(main_parts.values())) < 2:
        return ()
    running = _ranks_by_part(main_parts.items())
    having = _ranks_by_part(
        (summary.rank, frozenset(map(part_of, summary.frames))) for summary in ranks
    )
    own = {
        frozenset(members)
        for part, members in running.items()
        if 2 * len(having[part] - members) < len(ranks) - len(members)
    }
    if not 1 < len(own) <= _MOST_ROLES:
        return ()
    # A rank may also come through a part that no other of its role has.
    roles = [members for members in own if not any(members < other for other in own)]
    in_roles = sorted(chain.from_iterable(roles))
    if in_roles != sorted(main_parts):
        return ()
    return tuple(sorted(tuple(sorted(members)) for members in roles))


def _shares_of_files(summary: RankSummary, least: float) -> dict[str, float]:
    """The share of what a rank's code requests that is requested through a frame of each file; of
    files with more than the least.
    """
    return _shares_of_parts(summary, least, lambda frame: frame.place.file)


_PartT = TypeVar("_PartT", bound=Hashable)


def _shares_of_parts(
    summary: RankSummary, least: float, part_of: Callable[[FrameUse], _PartT]
) -> dict[_PartT, float]:
    # The frame with most bytes comes first.
    most_bytes = summary.frames[0].total_bytes if summary.frames else 0
    shares: dict[_PartT, float] = {}
    for frame in takewhile(lambda frame: frame.total_bytes > least * most_bytes, summary.frames):
        shares.setdefault(part_of(frame), frame.total_bytes / most_bytes)
    return shares


def _ranks_by_part(
    parts_of_ranks: Iterable[tuple[int, Iterable[Hashable]]],
) -> dict[Hashable, set[int]]:
    ranks: dict[Hashable, set[int]] = defaultdict(set)
    for rank, parts in parts_of_ranks:
        for part in parts:
            ranks[part].add(rank)
    return ranks


def roles_of_two(ranks: Sequence[RankSummary]) -> tuple[tuple[int, ...], ...]:
    """Two ranks of which each holds most of its peak at lines that the other does not have, as a
    generator and its discriminator do; () for any others.
    """
    if len(ranks) != _TWO:
        return ()
    first, second = ranks
    places = [{line.place for line in summary.lines if line.at_peak_bytes} for summary in ranks]
    own = [
        sum(line.at_peak_bytes for line in summary.lines if line.place not in {*others, None})
        for summary, others in ((first, places[1]), (second, places[0]))
    ]
    are_apart = all(
        size >= _OWN_OF_TWO * summary.peak_requested_bytes > 0
        for size, summary in zip(own, ranks, strict=True)
    )
    return ((first.rank,), (second.rank,)) if are_apart else ()
