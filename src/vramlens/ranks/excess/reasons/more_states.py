"""More optimizer state for as many parameters: another optimizer, or another option of it, on one rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vramlens.ranks.excess.cause_evidence import is_divided
from vramlens.ranks.excess.causes import MORE_STATES, NOT_FROZEN, SAME_SHARE, cause_of
from vramlens.ranks.excess.line_excess import LineExcess, more_at_peak
from vramlens.ranks.excess.rank_against_peers import RankAgainstPeers
from vramlens.ranks.peers.usual import lower_median
from vramlens.ranks.rank_difference import RankDifference
from vramlens.units import format_size

_STATES, _PARAMETERS, _GRADIENTS = "optimizer_state", "parameters", "gradients"
_FAR_MORE = 1.25
"""Times the states of its peers: ranks that divide states by whole tensors have up to a quarter more."""


def state_differences(
    beside: RankAgainstPeers, earlier: Sequence[RankDifference]
) -> list[RankDifference]:
    """What a rank holds more because its optimizer keeps more for each parameter; [] where it does not,
    where it has other parameters, or where its peers' states are of different sizes: they divide them.
    """
    if not beside.is_among or any(difference.cause == NOT_FROZEN for difference in earlier):
        return []
    peers = beside.usual.ranks
    usual_parameters = lower_median(rank.bytes_of(_PARAMETERS) for rank in peers)
    parameters = beside.rank.bytes_of(_PARAMETERS)
    if not parameters or abs(parameters - usual_parameters) > SAME_SHARE * usual_parameters:
        return []
    usual_gradients = lower_median(rank.bytes_of(_GRADIENTS) for rank in peers)
    if beside.rank.bytes_of(_GRADIENTS) > _FAR_MORE * usual_gradients:
        return []  # it trains more
    peers_states = [rank.bytes_of(_STATES) for rank in peers if rank is not beside.rank]
    states = beside.rank.bytes_of(_STATES)
    if max(peers_states) - min(peers_states) > SAME_SHARE * max(peers_states):
        return []
    lines = [
        excess
        for excess in map(beside.excess, beside.rank.lines)
        if excess.line.category == _STATES
        and excess.at_peak_bytes > 0
        and _are_more(beside, excess)
    ]
    excess_bytes = min(beside.more, more_at_peak(lines))
    if states < _FAR_MORE * max(peers_states) or excess_bytes < beside.least:
        return []
    difference = beside.from_lines(MORE_STATES, excess_bytes, lines)
    evidence = (
        f"{format_size(states)} of optimizer state for {format_size(parameters)} of parameters; its"
        f" peers: {format_size(max(peers_states))}"
    )
    return [replace(difference, evidence=(evidence, *difference.evidence))]


def _are_more(beside: RankAgainstPeers, excess: LineExcess) -> bool:
    """Whether a line makes more states, and nothing else says why: no checkpoint that is loaded, no
    larger shard, no whole tensors of states that ranks divide.
    """
    is_more = cause_of(excess.line, excess.usual, beside.position) == "pipeline_stage"
    return is_more and not is_divided(excess.line, beside.usual)
