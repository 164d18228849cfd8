"""Jobs on cards of several models: what is by the card is no difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from support.summaries import layers, line, named_causes, rank_of, with_lines
from vramlens.ranks import RankSummary, compare
from vramlens.units import GIB, MIB

SMALL, LARGE, OTHER = ("A100-40GB", 40 * GIB), ("A100-80GB", 80 * GIB), ("H100", 80 * GIB)
GROUPS = (("mesh_dp", ((0, 8, 1),)),)


def batch(times: float) -> list:
    """The lines of layers, with activations so many times as large."""
    lines = layers(2, 8)
    return [
        replace(
            one,
            peak_bytes=int(one.peak_bytes * times),
            at_peak_bytes=int(one.at_peak_bytes * times),
            total_bytes=int(one.total_bytes * times),
        )
        if one.category in ("activations", "temporaries")
        else one
        for one in lines
    ]


def job(cards: Sequence[tuple[str, int]], times: Sequence[float]) -> list[RankSummary]:
    return [
        rank_of(
            number,
            len(cards),
            batch(factor),
            device_name=name,
            total_bytes=total,
            groups=GROUPS,
            recomputed_bytes=0,
        )
        for number, ((name, total), factor) in enumerate(zip(cards, times, strict=True))
    ]


MIXED = (SMALL,) * 4 + (LARGE,) * 4


def test_batches_in_proportion_to_the_card_are_no_difference() -> None:
    assert compare(job(MIXED, (1,) * 4 + (2,) * 4)).differences == ()


def test_larger_batches_without_larger_cards_are_told() -> None:
    for cards in ((LARGE,) * 4 + (OTHER,) * 4, (LARGE,) * 4 + (SMALL,) * 4, (LARGE,) * 8):
        answer = compare(job(cards, (1,) * 4 + (2,) * 4))
        assert named_causes(answer) == [((4, 5, 6, 7), "uneven_batch")]


def test_far_more_than_in_proportion_to_the_card_is_told() -> None:
    answer = compare(job(MIXED, (1,) * 4 + (8,) * 4))
    assert named_causes(answer) == [((4, 5, 6, 7), "uneven_batch")]


def test_a_rank_is_compared_with_those_that_have_its_card() -> None:
    (difference,) = compare(job(MIXED, (1, 1.8, 1, 1, 2, 2, 2, 2))).differences
    assert (difference.ranks, difference.cause) == ((1,), "uneven_batch")
    ranks = job(MIXED, (1, 1, 1, 1, 2, 2, 2, 3))
    (difference,) = compare(ranks).differences
    assert (difference.ranks, difference.cause) == ((7,), "uneven_batch")
    usual = ranks[6].peak_requested_bytes
    assert difference.bytes == ranks[7].peak_requested_bytes - usual


def test_workspaces_that_libraries_choose_by_the_card_are_no_difference() -> None:
    cards = (LARGE,) * 4 + (OTHER,) * 4
    sizes = (8 * MIB,) * 4 + (80 * MIB,) * 4
    ranks = [
        with_workspace(rank, size) for rank, size in zip(job(cards, (1,) * 8), sizes, strict=True)
    ]
    assert compare(ranks).differences == ()
    ranks[5] = with_workspace(ranks[5], 300 * MIB)
    assert [difference.ranks for difference in compare(ranks).differences] == [(5,)]


def with_workspace(rank: RankSummary, size: int) -> RankSummary:
    lines = [one for one in rank.lines if one.category != "workspace"]
    more = with_lines(replace(rank, lines=tuple(lines)), line(60, "workspace", 1, size))
    return replace(more, device_name=rank.device_name, total_bytes=rank.total_bytes, groups=GROUPS)


def test_work_of_one_model_of_card_alone_is_told() -> None:
    ranks = job(MIXED, (1,) * 8)
    for number in range(4, 8):
        more = with_lines(ranks[number], line(80, "other", 1, 900 * MIB, phase="other"))
        ranks[number] = replace(more, device_name=LARGE[0], groups=GROUPS)
    (difference,) = compare(ranks).differences
    assert (difference.ranks, difference.cause) == ((4, 5, 6, 7), "rank_only")
    assert "GPU model A100-80GB" in difference.evidence[0]
