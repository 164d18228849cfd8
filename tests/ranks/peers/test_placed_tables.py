"""Tables of which each rank owns other ones: that they differ is nature, what comes beside is not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from support.summaries import layers, line, named_causes, rank_of, trainers, with_lines
from vramlens.ranks import RankSummary, compare
from vramlens.units import MIB

PLACED = (900, 1500, 400, 1200, 2900, 700, 1900, 1000)
COUNTS = (3, 3, 4, 3, 4, 5, 4, 3)


def recommenders(sizes: Sequence[int], counts: Sequence[int] = (3,) * 8) -> list[RankSummary]:
    """Ranks with the same dense part, and tables of so many MiB, so many each."""
    return [
        with_lines(
            rank,
            line(45, "parameters", count, size * MIB // count, phase="other"),
            line(52, "optimizer_state", count, size * MIB // (64 * count), phase="other"),
        )
        for rank, size, count in zip(trainers(len(sizes)), sizes, counts, strict=True)
    ]


@pytest.mark.parametrize("counts", [(3,) * 8, COUNTS])
def test_tables_that_are_placed_differ_by_nature(counts: Sequence[int]) -> None:
    answer = compare(recommenders(PLACED, counts))
    assert answer.differences == ()
    assert answer.cohorts.members == (tuple(range(8)),)
    assert answer.notes[0].startswith(
        "each rank has tables of its own, so their sizes differ by nature: 406.25 MiB on rank 2 to"
        " 2.88 GiB on rank 4, built at train/model.py:45"
    )


def test_one_rank_with_larger_tables_than_all_others_differs() -> None:
    answer = compare(recommenders((900, 900, 900, 2900, 900, 900, 900, 900)))
    assert named_causes(answer) == [((3,), "embedding_shard")]
    assert not any("tables" in note for note in answer.notes)


@pytest.mark.parametrize("odd", [2, 4])  # the fewest and the most tables
def test_a_fault_is_found_beside_tables_of_any_size(odd: int) -> None:
    ranks = recommenders(PLACED, COUNTS)
    ranks[odd] = with_lines(ranks[odd], line(55, "other", 3, 100 * MIB))
    answer = compare(ranks)
    assert named_causes(answer) == [((odd,), "rank_only")]
    assert answer.differences[0].bytes == 300 * MIB


def test_layers_that_are_spread_are_no_tables() -> None:
    """Stages of 1 to 8 layers, whose groups have no names, have no part in common."""
    ranks = [
        rank_of(stage, 8, layers(1 + stage, 8 - stage), recomputed_bytes=0) for stage in range(8)
    ]
    assert not any("tables" in note for note in compare(ranks).notes)
