"""What one edit gives back: told where all ranks have it, and as the reason where one has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from support.recordings import DATA
from support.summaries import line, rank_of, trainers
from vramlens.analyses.finding import Place
from vramlens.api import load
from vramlens.fleet.summary_json import summary_from_json, summary_to_json
from vramlens.ground.verdict import Verdict
from vramlens.ranks import RankSummary, compare, summarise
from vramlens.ranks.rank_summary import AvoidableUse
from vramlens.report.ranks.ranks_page import comparison_to_html
from vramlens.units import MIB

OUTPUTS = AvoidableUse(
    id="gathered_outputs",
    verdict=Verdict.LIKELY,
    bytes=800 * MIB,
    place=Place("train/eval.py", 7, "main"),
    title="The Trainer gathers the outputs",
    evidence=("it keeps them until the evaluation ends",),
    fix="set eval_accumulation_steps=1",
)


def with_use(
    ranks: Sequence[RankSummary], users: Sequence[int], **changes: object
) -> list[RankSummary]:
    """The ranks, some of which hold outputs that they need not hold."""
    use = replace(OUTPUTS, **changes)
    return [replace(rank, avoidable=(use,)) if rank.rank in users else rank for rank in ranks]


def test_what_all_ranks_need_not_hold_is_told() -> None:
    answer = compare(with_use(trainers(2), [0, 1]))
    assert not answer.differences
    (shared,) = answer.shared
    assert (shared.id, shared.verdict, shared.bytes) == (
        "gathered_outputs",
        Verdict.LIKELY,
        800 * MIB,
    )
    assert shared.title == "Both ranks have the same trouble: the Trainer gathers the outputs"
    assert answer.has_trouble


@pytest.mark.parametrize(
    "ranks",
    [
        with_use(trainers(4), [0, 1]),
        with_use(trainers(4), range(4), bytes=40 * MIB),
        with_use(trainers(4), range(4), verdict=Verdict.POSSIBLE),
        with_use(trainers(4), range(4), id="unused_graph", bytes=200 * MIB),
    ],
    ids=["half of the ranks", "a little", "not sure", "by lifetimes alone"],
)
def test_what_few_ranks_hold_or_is_little_is_not(ranks: Sequence[RankSummary]) -> None:
    answer = compare(ranks)
    assert not answer.shared
    assert "No difference worth acting on" in str(answer)


def test_the_headline_is_the_shared_trouble_and_the_next_command_is_no_search_for_leaks() -> None:
    text = str(compare(with_use(trainers(4), range(4))))
    assert text.startswith("All 4 ranks have the same trouble: the Trainer gathers")
    assert "Fix: set eval_accumulation_steps=1" in text
    assert "vramlens explain" in text
    assert "vramlens leaks" not in text


def test_the_page_has_the_shared_trouble_with_its_evidence_and_fix() -> None:
    page = comparison_to_html(compare(with_use(trainers(4), range(4))))
    for words in (*OUTPUTS.evidence, OUTPUTS.fix, "likely, not proven; on most ranks"):
        assert words in page


@pytest.mark.parametrize(
    ("users", "size_bytes", "is_reason"),
    [([1], 800 * MIB, True), ([0, 1], 800 * MIB, False), ([1], 100 * MIB, False)],
    ids=["of this rank", "of both", "a small part"],
)
def test_a_difference_has_the_reason_that_its_rank_alone_shows(
    users: Sequence[int], size_bytes: int, *, is_reason: bool
) -> None:
    ranks = trainers(2)
    kept = line(50, "other", 4, 250 * MIB, per_step=4)
    ranks[1] = rank_of(1, 2, [*ranks[1].lines, kept], recomputed_bytes=0)
    (difference,) = compare(with_use(ranks, users, bytes=size_bytes)).differences
    assert difference.ranks == (1,)
    assert (difference.fix == OUTPUTS.fix) is is_reason
    assert (OUTPUTS.title in difference.evidence) is is_reason


def test_a_recording_tells_what_its_rank_need_not_hold() -> None:
    summary = summarise(load(DATA / "captured" / "eval_with_grad.vram"), 0)
    (use,) = summary.avoidable
    assert (use.id, use.verdict) == ("eval_with_grad", Verdict.PROVEN)
    assert "torch.no_grad()" in use.fix
    assert summary_from_json(summary_to_json(summary)).avoidable == summary.avoidable


def alone_at_work(number: int, *, common: int = 40) -> RankSummary:
    """A rank of two that each do their work in a file that the other does not have."""
    program = Place(f"train/stage{number}.py", 7, "forward")
    own = replace(line(60, "activations", 8, 100 * MIB, per_step=8), place=program)
    shared = line(10, "parameters", 4, common * MIB, phase="other")
    return rank_of(number, 2, [own, shared], recomputed_bytes=0)


@pytest.mark.parametrize(
    ("changes", "is_told"),
    [
        ({}, True),
        ({"bytes": 40 * MIB}, False),
        ({"verdict": Verdict.POSSIBLE}, False),
        ({"id": "unused_graph"}, False),
    ],
    ids=["sure", "a little", "not sure", "by lifetimes alone"],
)
def test_what_a_rank_that_is_alone_of_its_kind_need_not_hold(
    changes: dict[str, object], *, is_told: bool
) -> None:
    ranks = [alone_at_work(0), alone_at_work(1)]
    assert not compare(ranks).differences
    differences = compare(with_use(ranks, [1], **changes)).differences
    if not is_told:
        assert not differences
        return
    (difference,) = differences
    assert (difference.ranks, difference.cause) == ((1,), "avoidable")
    assert (difference.bytes, difference.fix) == (OUTPUTS.bytes, OUTPUTS.fix)
    assert difference.title.startswith("rank 1 holds memory that one edit frees: the Trainer")


def test_what_both_kinds_have_is_told_of_both() -> None:
    answer = compare(with_use([alone_at_work(0), alone_at_work(1)], [0, 1]))
    assert not answer.differences
    assert len(answer.shared) == 1


def test_a_rank_with_peers_is_compared_with_them() -> None:
    assert not compare(with_use(trainers(2), [1])).differences
