"""Tables of which each rank owns other ones: that they differ is nature, what comes beside is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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


def test_tables_of_a_planner_are_of_few_sizes_and_many_numbers() -> None:
    """Few large ones on one rank, many small ones on another: as large a share, or nearly."""
    answer = compare(recommenders((2800, 2400, 2000, 2000, 2400, 2400), (2, 1, 4, 2, 2, 3)))
    assert answer.differences == ()
    assert answer.notes[0].startswith("each rank has tables of its own")


@pytest.mark.parametrize("counts", [(3,) * 8, (6, 6, 7, 10, 6, 7, 6, 6)])
def test_one_rank_with_larger_tables_than_all_others_differs(counts: Sequence[int]) -> None:
    answer = compare(recommenders((900, 900, 900, 2900, 900, 900, 900, 900), counts))
    assert [difference.ranks for difference in answer.differences] == [(3,)]
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


STATES = ((9, 80), (20, 7), (20, 7), (18, 6), (18, 6), (18, 6), (17, 6), (20, 7))
"""Of each rank: how many tensors of optimizer states, and their MiB; the first owns an embedding."""


def zero(states: Sequence[tuple[int, int]] = STATES) -> list[RankSummary]:
    """Trainers whose optimizer states are divided by whole tensors."""
    return [
        with_lines(rank, *[line(52, "optimizer_state", count, size * MIB)] * bool(count))
        for rank, (count, size) in zip(trainers(len(states)), states, strict=True)
    ]


@pytest.mark.parametrize("states", [STATES, (*STATES, (0, 1), (0, 1))])
def test_states_that_are_divided_by_whole_tensors_differ_by_nature(
    states: Sequence[tuple[int, int]],
) -> None:
    answer = compare(zero(states))
    assert answer.differences == ()
    least = "0 bytes on rank 8" if len(states) > 8 else "102.00 MiB on rank 6"
    assert answer.notes[0].startswith(
        "each rank has optimizer states of its own, so their sizes differ by nature:"
        f" {least} to 720.00 MiB on rank 0, built at train/model.py:52"
    )


def test_a_rank_with_the_states_of_all_others_differs() -> None:
    ranks = zero((*STATES[:5], (139, 11), *STATES[6:]))
    answer = compare(ranks)
    assert [told.ranks for told in answer.differences] == [(5,)]
    assert "720.00 MiB on rank 0" in answer.notes[0]


def test_a_fault_is_found_beside_states_of_any_size() -> None:
    ranks = zero()
    ranks[6] = with_lines(ranks[6], line(55, "other", 3, 100 * MIB))
    (told,) = compare(ranks).differences
    assert (told.ranks, told.cause, told.bytes) == ((6,), "rank_only", 300 * MIB)


def test_states_are_told_where_memory_is_short_for_them() -> None:
    ranks = zero()
    ranks[0] = replace(ranks[0], total_bytes=ranks[0].peak_reserved_bytes)
    assert [told.ranks for told in compare(ranks).differences] == [(0,)]
