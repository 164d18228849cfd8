"""Frames of the user's code that only one rank has: what a rank calls beside its peers' work, even
where the lines that hold the memory are lines of the model, which all have.
"""

from __future__ import annotations

from collections.abc import Callable, Set

from vramlens.analyses.finding import Place
from vramlens.ranks.excess.causes import only_grows
from vramlens.ranks.peers.usual import Usual
from vramlens.ranks.rank_summary import FrameUse, RankGrowth, RankSummary

_NEARLY_ALL = 0.9


def lone_frame(
    rank: RankSummary,
    usual: Usual,
    size_of: Callable[[FrameUse], int],
    least_bytes: float,
) -> FrameUse | None:
    """The innermost frame that its peers have not, of those that most of some bytes came through.

    None where they are fewer, or where the rank lacks a frame of its peers: it calls the same work
    from elsewhere.

    Args:
        rank: whose frames.
        usual: what is usual among its peers.
        size_of: the bytes of a frame.
        least_bytes: so many of them at least.
    """
    lone = [frame for frame in rank.frames if frame.place not in usual.frames]
    most_bytes = max(map(size_of, lone), default=0)
    if most_bytes < max(least_bytes, 1) or _works_elsewhere(rank, usual, least_bytes):
        return None
    through = (frame for frame in lone if 2 * size_of(frame) > most_bytes)
    return max(through, key=lambda frame: (frame.depth, size_of(frame)))


def is_of_lone_lines(leak: RankGrowth, rank: RankSummary, usual: Usual) -> bool:
    """True if a leak is told at a caller, and lines that only this rank has hold nearly all of it:
    they only grow, and each is a leak of its own.
    """
    if any(line.place == leak.place for line in rank.lines):
        return False
    growing = (line for line in rank.lines if line.place is not None and only_grows(line))
    alone_bytes = sum(line.at_peak_bytes for line in growing if usual.line(line) is None)
    return alone_bytes >= _NEARLY_ALL * leak.bytes


def lone_places_of_leaks(
    places: Set[Place | None], rank: RankSummary, usual: Usual
) -> Set[Place | None]:
    """The lines at which leaks are told, and the others of theirs that no peer has: they are told with
    them. What peers have, too, may hold more for another reason as well.
    """
    lines = {place for leak in rank.leaks if leak.place in places for place in leak.places}
    shared = {line.place for line in rank.lines if usual.line(line) is not None}
    return places | (lines - shared)


def _works_elsewhere(rank: RankSummary, usual: Usual, least_bytes: float) -> bool:
    own = {frame.place for frame in rank.frames}
    return any(
        at_peak_bytes >= least_bytes and place not in own
        for place, at_peak_bytes in usual.frames.items()
    )
