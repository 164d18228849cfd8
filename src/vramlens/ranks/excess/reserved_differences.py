"""Memory that a rank reserves and does not use, beside what its peers reserve so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from vramlens.ground.verdict import Verdict
from vramlens.ranks.excess.lone_frames import lone_frame
from vramlens.ranks.excess.rank_against_peers import ENOUGH_PEERS, SPREADS, RankAgainstPeers
from vramlens.ranks.rank_difference import RankDifference
from vramlens.ranks.rank_summary import FrameUse, LineUse, RankSummary
from vramlens.ranks.rank_words import DEFAULT_SETTINGS
from vramlens.units import MIB, format_size

_LEAST_SHARE, _LEAST_BY_CHANCE = 0.1, 0.2
"""A rank's unused reserved memory differs by so large a share of what is usually reserved, where
there is a reason for it; without one, less is chance where the ranks' sizes are a percent apart.
"""
_APART = 0.02
"""Peers have different batches if their peaks are so large a share apart."""
_LARGE_PART, _MANY_SIZES = 0.2, 5
"""Of a rank's peak, that a line holds, and how many sizes it requests: parts of a store that come and go,
each of its own size.
"""
_COMES_AND_GOES = 1.5
"""Times the most that a line holds, that it requests in all."""
_FRAGMENTED = 1.5
"""Times what a line holds: less is reserved for it where what was freed is used again."""
_OF_LINES = ("leak", "rank0_gather", "rank_only", "object_collective", "full_state_dict")
_FIX_OF_VARYING = (
    "pad its batches to a few fixed sizes, as its peers do, or set expandable_segments:True"
)
_VARIES = "its batches vary from step to step, its peers' do not: fewer requests fit what is cached"


def reserved_differences(
    beside: RankAgainstPeers, of_lines: Sequence[RankDifference]
) -> list[RankDifference]:
    """Memory that is reserved beyond what peers with the same allocations reserve; told beside
    other differences where these are single lines for which less than that was reserved.
    """
    settings = _other_settings(beside)
    is_only_one_to_vary = beside.steps().is_only_one_to_vary(beside.rank)
    threshold = _least(beside, has_reason=bool(settings) or is_only_one_to_vary)
    more = _more(beside, of_lines, is_padded=bool(settings))
    if more < max(threshold, beside.more):
        return []
    # What is reserved on top of what is held follows from it.
    if any(difference.cause not in _OF_LINES for difference in of_lines):
        return []
    # The space of what a line allocates may be there twice: once freed, it is split for others.
    if of_lines and more < 2 * max(threshold, sum(difference.bytes for difference in of_lines)):
        return []
    if settings:
        return [_difference(beside, "allocator_settings", more, settings)]
    if _is_chance(beside, more):
        return []
    if not is_only_one_to_vary:
        return [_difference(beside, "allocator", more)]
    fix = f"{_FIX_OF_VARYING}; about {format_size(more)}"
    return [replace(_difference(beside, "allocator", more, _VARIES), fix=fix)]


def _is_chance(beside: RankAgainstPeers, more: int) -> bool:
    """True if batches vary, or differ from rank to rank, or much is requested in many sizes, and no
    call of this rank alone is why: to whose sizes the cache fits least is chance.
    """
    are_apart = beside.usual.spread_bytes >= _APART * beside.usual.peak_bytes
    least_bytes = _LARGE_PART * beside.rank.peak_requested_bytes
    is_in_many_sizes = any(
        line.sizes >= _MANY_SIZES
        and line.peak_bytes >= least_bytes
        and line.total_bytes >= _COMES_AND_GOES * line.peak_bytes
        and line.per_step <= 1
        for line in beside.rank.lines
    )
    may_be_chance = beside.steps().vary or are_apart or is_in_many_sizes
    return may_be_chance and _lone_frame(beside, more) is None


def _lone_frame(beside: RankAgainstPeers, more: int) -> FrameUse | None:
    """The frame of this rank alone for which most of what it reserves more was reserved."""
    return lone_frame(beside.rank, beside.usual, _reserved_bytes, more / 2)


def with_reserved(beside: RankAgainstPeers, difference: RankDifference) -> RankDifference:
    """A difference of a line that only this rank has; where each of its requests has another size and
    passes, with all that is reserved for them: what was freed does not fit the next.
    """
    reserved = sum(
        frame.reserved_bytes for frame in beside.rank.frames if frame.place == difference.place
    )
    more = min(reserved, beside.rank.peak_reserved_bytes - beside.usual.reserved_bytes)
    lines = [line for line in beside.rank.lines if line.place == difference.place]
    is_fragmenting = difference.cause == "rank_only" and all(map(_is_never_the_same, lines))
    if not lines or not is_fragmenting or more < _FRAGMENTED * difference.bytes:
        return difference
    held = format_size(difference.bytes)
    return beside.difference(
        difference.cause,
        difference.verdict,
        more,
        place=difference.place,
        evidence=[
            *difference.evidence,
            f"{format_size(reserved)} are reserved for calls there, {held} of them in use at the"
            " peak: each call requests another size, and what was freed does not fit the next",
        ],
    )


def with_all_of_settings(
    differences: Sequence[RankDifference], ranks: Sequence[RankSummary]
) -> Iterator[RankDifference]:
    """Yields the differences; the first of some settings with all ranks that have these, as they
    cost less on some.
    """
    conf_of = {summary.rank: summary.alloc_conf for summary in ranks}
    named: set[str | None] = set()
    for difference in differences:
        conf = conf_of.get(difference.ranks[0])
        if difference.cause != "allocator_settings" or conf in named:
            yield difference
            continue
        named.add(conf)
        alike = tuple(rank for rank, own in conf_of.items() if own == conf)
        yield replace(difference, ranks=alike)


def _is_never_the_same(line: LineUse) -> bool:
    """True if a line makes what passes, in another size each time."""
    passes = line.category == "temporaries" and not line.static
    return passes and line.sizes == line.allocations > 1


def _more(beside: RankAgainstPeers, of_lines: Sequence[RankDifference], *, is_padded: bool) -> int:
    """How much more a rank reserves and does not use, beside what was reserved for lines with a
    difference of their own.

    Settings that round requests up pad what is allocated: what is requested says what is used.
    """
    rank, usual = beside.rank, beside.usual
    used = rank.peak_requested_bytes if is_padded else rank.peak_allocated_bytes
    usual_gap = usual.unrequested_bytes if is_padded else usual.gap[0]
    told = {difference.place for difference in of_lines} - usual.frames.keys()
    for_told = sum(frame.reserved_bytes for frame in rank.frames if frame.place in told)
    more = rank.peak_reserved_bytes - used - usual_gap - for_told
    # A rank that holds less than its peers has a wider gap under the same reserved memory.
    return min(more, rank.peak_reserved_bytes - usual.reserved_bytes)


def _least(beside: RankAgainstPeers, *, has_reason: bool) -> float:
    """From how many more bytes on what is reserved and unused differs: without a reason, chance
    decides in which order requests are served.
    """
    share = _LEAST_SHARE if has_reason else _LEAST_BY_CHANCE
    threshold = max(share * beside.usual.reserved_bytes, 64 * MIB)
    if has_reason:
        return threshold
    _, spread = beside.usual.gap
    is_known = len(beside.usual.ranks) >= ENOUGH_PEERS
    return max(threshold, (SPREADS if is_known else 2) * spread)


def _other_settings(beside: RankAgainstPeers) -> str:
    """One sentence on allocator settings that most peers do not have; "" where they are alike
    or unknown.
    """
    own, usual = beside.rank.alloc_conf, beside.usual.alloc_conf
    if own is None or usual is None or own == usual:
        return ""
    return f"allocator settings: {own or DEFAULT_SETTINGS}; its peers: {usual or DEFAULT_SETTINGS}"


def _difference(
    beside: RankAgainstPeers, cause: str, more: int, reason: str = ""
) -> RankDifference:
    """The difference, at the line for which most of it was reserved, if only this rank has one."""
    rank, usual = beside.rank, beside.usual
    frame = _lone_frame(beside, more)
    unused = rank.peak_reserved_bytes - rank.peak_requested_bytes
    evidence = [
        f"reserved but not requested: {format_size(unused)}, peers:"
        f" {format_size(usual.unrequested_bytes)}",
        f"peak of reserved memory {format_size(rank.peak_reserved_bytes)}; its peers:"
        f" {format_size(usual.reserved_bytes)} (median)",
    ]
    if reason:
        evidence.insert(0, reason)
    if frame is None:
        return beside.difference(cause, Verdict.PROVEN, more, evidence=evidence)
    size = format_size(frame.reserved_bytes)
    evidence.insert(0, f"{size} were reserved for calls at {frame.place}, which no peer makes")
    return beside.difference(cause, Verdict.PROVEN, more, place=frame.place, evidence=evidence)


def _reserved_bytes(frame: FrameUse) -> int:
    return frame.reserved_bytes
