"""Parameters that a rank trains, and its peers keep frozen: they cost it gradients, optimizer
states, and the activations that their backward pass needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from vramlens.analyses.attribution.parameter_uses import outermost_modules
from vramlens.ground.verdict import Verdict
from vramlens.ranks.excess.causes import NOT_FROZEN
from vramlens.ranks.excess.line_excess import OF_TRAINED, LineExcess, is_of_training, more_at_peak
from vramlens.ranks.excess.rank_against_peers import RankAgainstPeers
from vramlens.ranks.peers.trained_parameters import OtherTraining, UsualTraining
from vramlens.ranks.peers.usual import lower_median
from vramlens.ranks.rank_difference import LEAST_BYTES, LEAST_SHARE, RankDifference
from vramlens.ranks.rank_summary import RankSummary
from vramlens.ranks.rank_words import named, plural
from vramlens.units import counted, first_of, format_size

_OF_BACKWARD = ("backward", "optimizer")
_PROVING = 0.1
"""Of what is blamed, that their gradients and two states would be: activations alone may be
another's.
"""
_GRADIENT, _WITH_STATES = 1, 3
"""Times the bytes of a parameter: its gradient, and two states of Adam beside it."""
_MOST_MODULES = 3
_FEWEST_RANKS = 3
"""Of two ranks nobody is the odd one."""


def unfrozen_differences(
    beside: RankAgainstPeers, leaks: Sequence[RankDifference]
) -> list[RankDifference]:
    """What a rank holds more because it trains what its peers keep frozen, beside what leaks; []
    where it does not, or where that shows in no memory. Stages of a pipeline may number their
    layers alike, and some be frozen.
    """
    training = beside.usual.training.beside(beside.rank)
    if training is None or training.bytes <= 0 or beside.position.sends:
        return []
    places = {leak.place for leak in leaks}
    lines = [
        excess
        for excess in map(beside.excess, beside.rank.lines)
        if is_of_training(excess) and excess.line.place not in places
    ]
    most_bytes = beside.more - sum(leak.bytes for leak in leaks)
    excess_bytes = min(most_bytes, more_at_peak(lines))
    if excess_bytes < beside.least or not any(map(_is_of_backward, lines)):
        return []
    return [_told(beside, training, beside.from_lines(NOT_FROZEN, excess_bytes, lines))]


def _is_of_backward(excess: LineExcess) -> bool:
    return excess.line.phase in _OF_BACKWARD or excess.line.category in OF_TRAINED


def _told(
    beside: RankAgainstPeers, training: OtherTraining, difference: RankDifference
) -> RankDifference:
    is_stepped = 2 * training.stepped_bytes >= training.bytes
    parts, modules = _parameters(training, beside.rank)
    does = "trains" if is_stepped else "computes gradients for"
    own_bytes = training.bytes * (_WITH_STATES if is_stepped else _GRADIENT)
    is_proven = own_bytes >= _PROVING * difference.bytes
    return replace(
        difference,
        verdict=Verdict.PROVEN if is_proven else Verdict.LIKELY,
        title=f"{does} {parts} that its peers keep frozen:"
        f" {format_size(difference.bytes)} more than its peers",
        evidence=(
            *difference.evidence,
            "gradients, optimizer states and activations for them are kept on this rank only"
            if is_stepped
            else "no optimizer has them: their gradients, and activations for these, serve nothing",
        ),
        fix=difference.fix.replace("these modules", modules),
    )


def _parameters(training: OtherTraining, rank: RankSummary) -> tuple[str, str]:
    """The parameters that make the difference in words (how many, of which modules, how large), and
    the modules alone.
    """
    names = tuple(group.modules for group in training.groups)
    other_modules = {group.modules for group in rank.parameters if group not in training.groups}
    modules = outermost_modules(names, frozenset(other_modules)) or names
    where = first_of(modules, _MOST_MODULES)
    count = counted(abs(training.count), "parameter")
    return f"{count} of {where} ({format_size(abs(training.bytes))})", where


def notes_of_frozen(ranks: Sequence[RankSummary]) -> Iterator[str]:
    """Yields one sentence on the ranks that keep frozen what most of their peers train, and hold
    less for it.
    """
    if len(ranks) < _FEWEST_RANKS:
        return
    usual = UsualTraining(ranks)
    usual_peak = lower_median(rank.peak_requested_bytes for rank in ranks)
    least_bytes = max(LEAST_SHARE * usual_peak, LEAST_BYTES)
    lower = [rank for rank in ranks if usual_peak - rank.peak_requested_bytes >= least_bytes]
    trainings = [(rank, usual.beside(rank)) for rank in lower]
    fewer = [(rank, other) for rank, other in trainings if other is not None and other.bytes < 0]
    if fewer:
        rank, training = min(fewer, key=lambda pair: pair[1].bytes)
        parts, _ = _parameters(training, rank)
        keeps = f"keeps {parts} frozen that its peers train"
        words = keeps if len(fewer) == 1 else plural(keeps)
        yield f"{named([rank.rank for rank, _ in fewer])} {words}: the lower peak is of that"
