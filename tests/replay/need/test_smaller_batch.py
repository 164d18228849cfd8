"""The search for the largest batch that fits: right, and with few replays."""

from __future__ import annotations

import pytest

from vramlens.analyses.failure.need import Need
from vramlens.replay.need.smaller_batch import SmallerBatch, largest_fitting


class Replays:
    """A run that reserves ``holes`` times what is alive, and gets by with a little less."""

    def __init__(self, room: int, holes: float) -> None:
        self.room, self.holes, self.tried = room, holes, 0

    def largest_percent(self, with_holes: float = 1.0) -> int:
        return min(99, int(self.room / with_holes))

    def peak(self, percent: int, order: int = 0) -> int | None:
        self.tried += order == 0
        reserved = round(percent * self.holes)
        return reserved if reserved <= self.room else None


def need(holes: float) -> Need:
    reserved = int(1000 * holes)
    return Need(
        peak_reserved_bytes=reserved, low_bytes=reserved, high_bytes=reserved, basis="earlier_step",
        scale=1.0, done_share=0.5, confidence="bounded", floor_bytes=1000,
    )  # fmt: skip


@pytest.mark.parametrize("room", [3, 20, 50, 77, 98])
@pytest.mark.parametrize("holes", [1.0, 1.1, 1.4])
@pytest.mark.parametrize("told_holes", [1.0, 1.2, 1.4])
def test_few_replays_find_what_fits(room: int, holes: float, told_holes: float) -> None:
    replays = Replays(room, holes)
    batch = largest_fitting(replays, need(told_holes))
    most = max((n for n in range(2, 100) if round(n * holes) <= room), default=None)
    assert replays.tried <= 9
    if most is None:
        assert batch is None
    else:
        assert batch is not None
        assert isinstance(batch, SmallerBatch)
        assert most - 4 <= round(100 * batch.share) <= most


def test_where_not_even_a_small_batch_fits_there_is_none() -> None:
    assert largest_fitting(Replays(1, 1.0), need(1.0)) is None
