"""A rank that keeps the parameters which FSDP gathered is told so; its peers, which gather them again for the
backward pass from other lines, do nothing that is told.
"""

from __future__ import annotations

from dataclasses import replace

from support.summaries import line, named_causes, rank_of
from vramlens.ground.verdict import Verdict
from vramlens.ranks import RankSummary, compare
from vramlens.ranks.hints import Hint
from vramlens.ranks.rank_summary import LineUse
from vramlens.units import MIB

LAYERS, STEPS = 24, 20


def _gather(number: int, alive: int, a_step: int, phase: str = "forward") -> LineUse:
    gathered = line(number, "temporaries", alive, 25 * MIB, per_step=a_step, phase=phase)
    return replace(gathered, allocations=a_step * STEPS, hints=Hint.SHARDED)


def _rank(number: int, *, reshards: bool) -> RankSummary:
    model = [
        line(10, "parameters", LAYERS, 20 * MIB, phase="other"),
        line(11, "optimizer_state", LAYERS, 40 * MIB, phase="optimizer"),
        line(12, "activations", 40, 20 * MIB, per_step=40),
    ]
    again = [_gather(13, 2, 2 * LAYERS), _gather(14, 4, LAYERS, "backward")]
    once = [replace(_gather(13, LAYERS, LAYERS), category="other", static=True)]
    return rank_of(number, 4, model + (again if reshards else once))


def test_ranks_that_keep_what_they_gathered() -> None:
    ranks = [_rank(number, reshards=number < 2) for number in range(4)]
    (told,) = compare(ranks).differences
    assert (told.ranks, told.cause, told.verdict) == ((2, 3), "not_resharded", Verdict.LIKELY)
    assert told.bytes == (LAYERS - 2 - 4) * 25 * MIB
    assert told.fix.startswith("give fully_shard the same reshard_after_forward on all ranks")


def test_all_keep_it() -> None:
    assert compare([_rank(number, reshards=False) for number in range(4)]).differences == ()


def test_where_a_rank_alone_gathers_again_is_no_fault() -> None:
    ranks = [_rank(number, reshards=number == 0) for number in range(4)]
    assert named_causes(compare(ranks)) == []


def test_what_a_rank_alone_keeps_of_what_it_gathered_is_its_own() -> None:
    """A copy of the weights, made once."""
    ranks = [_rank(number, reshards=True) for number in range(4)]
    copied = line(15, "other", 10, 50 * MIB, hints=Hint.SHARDED)
    ranks[1] = rank_of(1, 4, [*ranks[1].lines, copied])
    assert named_causes(compare(ranks)) == [((1,), "rank_only")]


def test_activations_of_divided_layers_are_not_gathered() -> None:
    """DTensors are sharded, too: a rank that does not checkpoint computes them half as often."""
    model = [line(10, "parameters", LAYERS, 20 * MIB, phase="other")]
    again = line(12, "activations", 4, 50 * MIB, per_step=48, hints=Hint.SHARDED)
    kept = line(12, "activations", 24, 50 * MIB, per_step=24, hints=Hint.SHARDED)
    ranks = [rank_of(number, 4, [*model, kept if number == 2 else again]) for number in range(4)]
    assert "not_resharded" not in {cause for _, cause in named_causes(compare(ranks))}
