"""Larger batches: what shows them, and what levels them."""

from __future__ import annotations

from collections.abc import Sequence

from vramlens.ranks.excess.causes import is_built_once
from vramlens.ranks.excess.line_excess import LineExcess, bytes_of, growth_of
from vramlens.ranks.excess.reasons.wider_numbers import are_twice_as_wide, makes_fewer
from vramlens.ranks.peers.usual import Usual
from vramlens.ranks.rank_summary import LineUse, RankSummary
from vramlens.units import format_size

_LEAST = 0.1
"""Batches are larger where lines with this share of what comes and goes are."""
_MOST_UNITS, _NEAR = 16, 0.03
"""Units of a part that one more makes larger; and by how much tokens are apart that were dealt evenly."""
_LEAST_PART = 0.25
"""Of a rank's parameters, that are its part."""
IF_BALANCED = "if balanced"
_LITTLE = 0.05
"""Of a rank's batch, that would go to others: to level the batches would change next to nothing."""


def cause_of_larger(larger: Sequence[LineExcess], rank: RankSummary, usual: Usual) -> str:
    """The cause of as many allocations that are larger: batches, if lines of some weight are,
    activations among them; else a library's buffers, such as those of another algorithm.
    """
    pairs = [(line, usual.line(line)) for line in rank.lines]
    moving = [(line, peer) for line, peer in pairs if peer is not None and not is_built_once(peer)]
    activations = [
        (line, peer) for line, peer in moving if "activations" in (line.category, peer.category)
    ]
    growing = {excess.line for excess in larger}
    # Lines may have more bytes that pass than bytes that are kept: then all of them count.
    has_activations = _usual_bytes(activations) >= _LEAST * _usual_bytes(moving)
    weighty = activations if has_activations else moving
    all_bytes = _usual_bytes(weighty)
    larger_bytes = sum(peer.peak_bytes for line, peer in weighty if line in growing)
    if larger_bytes >= _LEAST * all_bytes > 0:
        if not are_twice_as_wide(larger, rank, usual):
            return "uneven_batch"
        return "wider_numbers" if makes_fewer(larger) else "larger_tensors"
    is_passing = all(excess.line.category in ("temporaries", "workspace") for excess in larger)
    return "workspaces" if larger and is_passing else "unknown"


def _usual_bytes(pairs: Sequence[tuple[LineUse, LineUse]]) -> int:
    """What peers hold of some lines, each as the rank and as they use it."""
    return sum(peer.peak_bytes for _, peer in pairs)


def are_all_larger(experts: Sequence[LineExcess], larger: Sequence[LineExcess]) -> bool:
    """True if longer sequences make all lines larger, those of experts no more than others."""
    places = {excess.line.place for excess in experts}
    other_lines = [excess for excess in larger if excess.line.place not in places]
    is_much = 4 * bytes_of(other_lines) >= bytes_of(experts)
    return is_much and growth_of(other_lines) >= growth_of(experts) / 2


def leveled(excesses: Sequence[LineExcess], rank: RankSummary, usual: Usual) -> list[str]:
    """One sentence on the batches of all, and the highest peak, if the ranks shared the work
    evenly; none where the rank's batches are hardly larger on average.
    """
    # As many allocations of each: ranks may have recorded more or fewer steps.
    pairs = [
        (excess.line.mean_bytes * excess.usual.allocations, excess.usual.total_bytes)
        for excess in excesses
        if excess.usual is not None
    ]
    total_bytes = sum(line_bytes for line_bytes, _ in pairs)
    usual_bytes = sum(line_bytes for _, line_bytes in pairs)
    if total_bytes <= usual_bytes or not usual_bytes:
        return []
    ratio, world = total_bytes / usual_bytes, max(2, len(usual.ranks))
    even = (world - 1 + ratio) / world
    if even / ratio >= 1 - _LITTLE:
        return []
    peak = usual.peak_bytes + (rank.peak_requested_bytes - usual.peak_bytes) // world
    return [
        f"{IF_BALANCED} (estimated): rank {rank.rank} gets {even / ratio:.2f}x its current batch"
        f" and the others {even:.2f}x theirs, with the same number of samples in total; the"
        f" highest peak drops to about {format_size(peak)}"
    ]


def are_of_larger_part(larger: Sequence[LineExcess], rank: RankSummary, usual: Usual) -> bool:
    """True if lines are larger by no more than a rank's part of the model is, and that is by one of a
    few units, which the first ranks have: of 16 experts on three ranks the first has six, and the
    others five.
    """
    own_bytes = rank.bytes_of("parameters")
    before = (peer for peer in usual.ranks if peer.rank < rank.rank)
    if any(peer.bytes_of("parameters") < own_bytes for peer in before):
        return False
    pairs = [(line, usual.line(line)) for line in rank.lines if line.category == "parameters"]
    divided = [
        (line.peak_bytes, peer.peak_bytes)
        for line, peer in pairs
        if peer is not None
        and line.allocations == peer.allocations
        and line.peak_bytes > peer.peak_bytes
    ]
    part_bytes = sum(own for own, _ in divided)
    usual_bytes = sum(peers for _, peers in divided)
    if part_bytes < _LEAST_PART * own_bytes or not usual_bytes:
        return False
    ratio = part_bytes / usual_bytes
    units = 1 / (ratio - 1)
    is_one_unit = 1 <= units <= _MOST_UNITS and abs(units - round(units)) <= _NEAR * units
    most = max(
        (
            excess.line.peak_bytes / max(1, excess.usual.peak_bytes)
            for excess in larger
            if excess.usual is not None
        ),
        default=0.0,
    )
    return is_one_unit and most <= (1 + _NEAR) * ratio
