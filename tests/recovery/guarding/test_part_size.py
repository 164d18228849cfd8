"""The size of parts by itself: halved by failures, raised after clean steps."""

from __future__ import annotations

from typing import Any

import pytest

from vramlens.recovery.guarding.guard_options import GuardOptions
from vramlens.recovery.guarding.part_size import PartSize
from vramlens.recovery.splitting.learned_splits import MICRO_BATCH, SPLIT_FILE


@pytest.fixture(autouse=True)
def _nothing_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (MICRO_BATCH, SPLIT_FILE):
        monkeypatch.delenv(name, raising=False)


def part_size(notes: list[tuple[str, str]], **options: Any) -> PartSize:
    return PartSize(GuardOptions(**options), lambda kind, text: notes.append((kind, text)))


def clean_steps(size: PartSize, count: int) -> None:
    for _ in range(count):
        size.note_clean_step(may_grow=True)


def test_it_grows_half_way_to_the_part_that_failed() -> None:
    notes: list[tuple[str, str]] = []
    size = part_size(notes, micro_batch=16, grow_after=2)
    size.note_failed_part(32)
    clean_steps(size, 1)
    assert size.samples == 16
    clean_steps(size, 1)
    assert size.samples == 24
    assert notes == [
        (
            "grow",
            "2 clean steps: batches now run in parts of at most 24 samples (before: 16)",
        )
    ]


def test_near_the_failed_part_it_waits_ten_times_as_long() -> None:
    size = part_size([], micro_batch=16, grow_after=1)
    size.note_failed_part(17)
    clean_steps(size, 1)
    assert (size.samples, size.failed_samples) == (16, 34)
    clean_steps(size, 9)
    assert size.samples == 16
    clean_steps(size, 1)
    assert size.samples == 25


def test_a_failure_begins_the_count_anew() -> None:
    size = part_size([], micro_batch=4, grow_after=2)
    clean_steps(size, 1)
    size.note_failed_step()
    clean_steps(size, 1)
    assert size.samples == 4


def test_whole_batches_and_ranks_that_share_a_model_do_not_grow() -> None:
    whole = part_size([], grow_after=1)
    clean_steps(whole, 3)
    assert whole.samples is None
    sharded = part_size([], micro_batch=4, grow_after=1)
    sharded.note_clean_step(may_grow=False)
    assert sharded.samples == 4


def test_the_smallest_part_that_failed_is_kept() -> None:
    size = part_size([], micro_batch=4)
    for failed in (32, None, 16, 24):
        size.note_failed_part(failed)
    assert size.failed_samples == 16
