"""A whole copy of the weights on one rank, where all ranks divide them: an average, or a state that was gathered
and kept.
"""

from __future__ import annotations

from vramlens.ground.verdict import Verdict
from vramlens.ranks.excess.causes import SAME_SHARE, WHOLE_COPY
from vramlens.ranks.excess.rank_against_peers import RankAgainstPeers
from vramlens.ranks.hints import Hint
from vramlens.ranks.rank_difference import RankDifference
from vramlens.ranks.rank_summary import LineUse, ParameterGroup, RankSummary
from vramlens.units import format_size

_FEWEST_PARTS = 2


def whole_copy_differences(beside: RankAgainstPeers) -> list[RankDifference]:
    """What a rank alone holds for a copy of all weights, of which each rank has a part; [] without one."""
    rank = beside.rank
    groups = _parameters_of_job(rank)
    count = sum(group.count for group in groups)
    part_bytes = sum(group.bytes for group in groups)
    is_divided = any(line.hints & Hint.SHARDED for line in rank.lines)
    if not part_bytes or not is_divided:
        return []
    copies = [
        excess
        for excess in map(beside.excess, rank.lines)
        if excess.usual is None and _is_copy(excess.line, count, part_bytes)
    ]
    largest = max(copies, key=lambda excess: excess.at_peak_bytes, default=None)
    if largest is None or largest.at_peak_bytes < beside.least:
        return []
    size_bytes, place = largest.at_peak_bytes, largest.line.place
    evidence = [
        f"{count:,} tensors, as many as the model has parameters, hold {format_size(size_bytes)};"
        f" this rank's part of the parameters is {format_size(part_bytes)}",
        beside.part_of_peak(size_bytes),
    ]
    return [
        beside.difference(WHOLE_COPY, Verdict.LIKELY, size_bytes, place=place, evidence=evidence)
    ]


def _parameters_of_job(rank: RankSummary) -> list[ParameterGroup]:
    """A rank's part of the parameters that the ranks divide, without those of a copy that is a module, too:
    whole ones that nothing trains. All where nobody knows which are divided.
    """
    if not any(group.parts > 1 for group in rank.parameters):
        return list(rank.parameters)
    return [group for group in rank.parameters if group.parts > 1 or group.use == "stepped"]


def _is_copy(line: LineUse, count: int, part_bytes: int) -> bool:
    """True if a line built as many tensors as there are parameters, with several times the bytes of a rank's
    part of them.
    """
    times = round(line.peak_bytes / part_bytes)
    is_multiple = abs(line.peak_bytes - times * part_bytes) <= SAME_SHARE * line.peak_bytes
    return line.static and line.allocations == count and times >= _FEWEST_PARTS and is_multiple
