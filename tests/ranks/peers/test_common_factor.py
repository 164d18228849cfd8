"""What the ranks that differ have in common, and who is slow."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from support.lake_jobs import CLEAN, LEAK
from support.recordings import data_of, read
from vramlens.ranks import RankSummary, compare, summarise


@cache
def rank_of(name: str) -> RankSummary:
    return summarise(read(data_of(name)), 0)


def job(leaking: set[int], **facts_of: Any) -> list[RankSummary]:
    """Sixteen ranks on four hosts, of which some leak; facts by name, each a function of the
    rank.
    """
    facts = {
        "host": lambda rank: f"node{rank // 4}",
        "local_rank": lambda rank: rank % 4,
        "device_name": lambda rank: "NVIDIA H200",
        **facts_of,
    }
    return [
        replace(
            rank_of(LEAK if rank in leaking else CLEAN),
            rank=rank,
            device=0,
            **{name: fact(rank) for name, fact in facts.items()},
        )
        for rank in range(16)
    ]


@pytest.mark.parametrize(
    ("leaking", "factor"),
    [
        ({4, 5, 6, 7}, "host node1"),
        ({2, 6, 10, 14}, "local rank 2"),
        ({3, 9}, "GPU model NVIDIA B200"),
    ],
)
def test_what_the_ranks_have_in_common_is_told(leaking: set[int], factor: str) -> None:
    def device_name(rank: int) -> str:
        return "NVIDIA B200" if rank in (3, 9) else "NVIDIA H200"

    comparison = compare(job(leaking, device_name=device_name))
    difference = comparison.differences[0]
    assert difference.ranks == tuple(sorted(leaking))
    assert difference.evidence[0].startswith(f"these are all the ranks of {factor}")


def test_ranks_without_a_common_factor_are_told_none() -> None:
    difference = compare(job({1, 6, 11})).differences[0]
    assert not any("these are all the ranks" in line for line in difference.evidence)


def test_a_slow_rank_is_told_and_whether_memory_explains_it() -> None:
    def step_us(rank: int) -> int:
        return 60_000 if rank in (1, 9) else 40_000 + rank

    notes = compare(job(set(), step_us=step_us)).notes
    told = [note for note in notes if "longer for a step" in note]
    assert told == [
        "ranks 1 and 9 take longer for a step: 60.0 ms on rank 1, usually 40.0 ms;"
        " they hold no more memory than their peers: memory does not explain it"
    ]
    notes = compare(job({1, 9}, step_us=step_us)).notes
    assert any("they hold more memory, too" in note for note in notes)


def test_equal_steps_are_no_news() -> None:
    notes = compare(job(set(), step_us=lambda rank: 40_000 + 300 * rank)).notes
    assert not any("longer for a step" in note for note in notes)


def test_steps_that_are_divided_in_another_way_are_not_slow() -> None:
    """Half as many steps of twice the time: what one does every other step took two for one. A rank
    that is slow has as many steps as the others, or not twice the time.
    """

    def notes(step_us: int, steps: int) -> list[str]:
        ranks = job(
            set(),
            step_us=lambda rank: step_us if rank == 3 else 40_000,
            step_peaks=lambda rank: (1 << 30,) * (steps if rank == 3 else 40),
        )
        return [note for note in compare(ranks).notes if "longer for a step" in note]

    assert not notes(80_000, 20)
    assert not notes(200_000, 8)
    assert notes(80_000, 40)
    assert notes(52_000, 30)  # ended with the others, and slower
