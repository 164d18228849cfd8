"""What a container itself says of why it ends growing."""

from __future__ import annotations

from functools import lru_cache

from vramlens.ground.verdict import Verdict
from vramlens.live.excuses.container_bounds import Growth, container_excuse


def verdict_on_cache(entries: int) -> tuple[Verdict, str] | None:
    @lru_cache(maxsize=8)
    def positions(length: int) -> list[int]:
        return [0] * length

    for length in range(entries):
        positions(length)
    return container_excuse(Growth(container=positions, keeper=None, holder=None, is_graph=False))


def test_a_full_cache_grows_no_further() -> None:
    assert verdict_on_cache(20) == (Verdict.NOT_A_PROBLEM, "a cache of at most 8, and it is full")


def test_a_cache_that_fills_and_is_never_hit_is_not_excused() -> None:
    excuse = verdict_on_cache(5)
    assert excuse is not None
    assert excuse[0] == Verdict.POSSIBLE
