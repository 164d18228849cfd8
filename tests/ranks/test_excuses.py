"""What is a rank's own by nature hides no fault that only looks like it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.summaries import layers, line, named_causes, rank_of, trainers, with_lines
from vramlens.ranks import compare
from vramlens.ranks.hints import Hint
from vramlens.ranks.peers.rank_cohorts import cohorts_of
from vramlens.ranks.rank_summary import Stray
from vramlens.units import GIB, MIB


@pytest.mark.parametrize("sizes", [1, 40])
def test_a_model_of_many_sizes_is_no_store_whose_parts_change(sizes: int) -> None:
    model = replace(line(10, "parameters", 40, 50 * MIB, phase="other"), sizes=sizes)
    ranks = [rank_of(rank, 4, [model]) for rank in range(4)]
    ranks[2] = replace(ranks[2], peak_reserved_bytes=40 * GIB)
    assert named_causes(compare(ranks)) == [((2,), "allocator")]


def test_one_small_parameter_is_no_larger_part_of_the_model() -> None:
    bias = line(14, "parameters", 1, 512, phase="other")
    work = line(12, "activations", 4, 100 * MIB, per_step=8)
    ranks = [with_lines(rank, bias, work) for rank in trainers(4)]
    more = replace(
        work, peak_bytes=800 * MIB, at_peak_bytes=800 * MIB, total_bytes=2 * work.total_bytes
    )
    larger = replace(bias, peak_bytes=1024, at_peak_bytes=1024, total_bytes=1024)
    ranks[0] = with_lines(trainers(4)[0], larger, more)
    assert named_causes(compare(ranks)) == [((0,), "uneven_batch")]


def test_lines_without_a_place_are_no_work_of_their_own() -> None:
    nowhere = [replace(use, place=None, peak_bytes=5 * use.peak_bytes, at_peak_bytes=5 * use.at_peak_bytes)
               for use in layers(2, 2)]  # fmt: skip
    assert compare([rank_of(0, 2, nowhere), trainers(2)[1]]).differences != ()


def test_parts_built_at_two_lines_are_no_copies_of_each_other() -> None:
    def part(at: int) -> list[object]:
        return [line(at + n, "parameters", 4, 100 * MIB, phase="other") for n in (0, 1)]

    sends = line(5, "temporaries", 1, MIB, per_step=1, hints=Hint.POINT_TO_POINT)
    ranks = [rank_of(rank, 4, [*part(10 if rank < 2 else 20), sends]) for rank in range(4)]
    assert cohorts_of(ranks, {}).members == ((0, 1), (2, 3))
    assert compare(ranks).differences == ()


def test_parameters_of_no_bytes_are_read() -> None:
    empty = [line(at, "parameters", 1, 0, phase="other") for at in (10, 11)]
    assert compare([rank_of(rank, 3, empty) for rank in range(3)]).differences == ()


def test_replicas_with_things_of_their_own_are_no_stages() -> None:
    own = {0: line(30, "parameters", 3, 170 * MIB, phase="other"),
           3: line(31, "parameters", 3, 170 * MIB, phase="other")}  # fmt: skip
    ranks = [
        rank_of(rank, 4, [*layers(10, 2), *([own[rank]] if rank in own else [])])
        for rank in range(4)
    ]
    answer = compare(ranks)
    assert not answer.cohorts.staged
    assert named_causes(answer) == [((0,), "rank_only"), ((3,), "rank_only")]


def test_a_small_stray_excuses_no_large_line() -> None:
    table = line(80, "other", 1, 20 * GIB)
    ranks = [replace(rank, host="h", device=rank.rank) for rank in trainers(4)]
    ranks[0] = replace(with_lines(ranks[0], table), host="h", device=0)
    stray = Stray(
        device=0, reserved_bytes=2 * MIB, process_bytes=None, place=table.place, hints=Hint.NONE
    )
    ranks[1] = replace(ranks[1], strays=(stray,))
    assert ((0,), "rank_only") in named_causes(compare(ranks))
