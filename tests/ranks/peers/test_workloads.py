"""Workloads: replicas that serve other requests than each other are not compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.summaries import line, named_causes, rank_of
from vramlens.ranks import RankSummary, compare
from vramlens.ranks.peers.rank_cohorts import WORKLOADS
from vramlens.units import MIB

PREFILL, DECODE = (400, 300), (1200, 20)
"""MiB of the pool of pages, and of what is computed."""


def servers(*sizes: tuple[int, int], replica: int = 2, grouped: bool = True) -> list[RankSummary]:
    """Replicas of so many ranks, each with a pool and what it computes."""
    ranks = []
    for number, (pool, computed) in enumerate(sizes):
        for rank in range(number * replica, (number + 1) * replica):
            summary = rank_of(
                rank,
                len(sizes) * replica,
                [
                    line(10, "parameters", 4, 200 * MIB, phase="other"),
                    line(31, "other", 1, pool * MIB, phase="other"),
                    line(55, "temporaries", 1, computed * MIB, per_step=1),
                ],
                recomputed_bytes=0,
            )
            groups = (("tensor_parallel", ((number * replica, replica, 1),)),)
            ranks.append(replace(summary, groups=groups if grouped else ()))
    return ranks


@pytest.mark.parametrize("grouped", [True, False])
def test_replicas_that_read_and_those_that_write_are_of_two_kinds(grouped: bool) -> None:
    answer = compare(servers(PREFILL, PREFILL, DECODE, DECODE, grouped=grouped))
    assert answer.differences == ()
    assert answer.cohorts.source == WORKLOADS
    assert answer.cohorts.members == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert answer.notes[0] == (
        "the ranks serve 2 kinds of requests (ranks 0-3; ranks 4-7), so other lines hold most of their"
        " memory: each rank is compared with those of its kind"
    )


def test_a_fault_within_a_kind_is_told() -> None:
    answer = compare(servers(PREFILL, PREFILL, DECODE, (1500, 20), DECODE))
    assert named_causes(answer) == [((6, 7), "larger_tensors")]
    assert answer.differences[0].bytes == 300 * MIB


def test_a_larger_pool_alone_is_a_difference() -> None:
    answer = compare(servers(DECODE, DECODE, (1900, 20), DECODE))
    assert named_causes(answer) == [((4, 5), "larger_tensors")]


def test_ranks_that_train_are_of_one_kind() -> None:
    ranks = [
        replace(rank, lines=(*rank.lines, line(60, "temporaries", 1, MIB, phase="backward")))
        for rank in servers(PREFILL, PREFILL, DECODE, DECODE)
    ]
    assert compare(ranks).cohorts.source != WORKLOADS
