"""Heaps: every table sums to the requested bytes, and those to a sum made event by event."""

from __future__ import annotations

import random

import pytest

from support.recordings import DATA
from vramlens import Recording, load
from vramlens.analyses.memory.heap import Heap, heap_at
from vramlens.trace import Action

SUMMED = [
    "recordings/gpt", "recordings/gpt_annotated", "recordings/leak_cycle", "recordings/oom_train",
    "recordings/oom_train_expandable", "recordings/resnet50", "recordings/streams", "recordings/graphs",
    "found/late_start", "found/wrapped", "found/cpp_stacks", "found/metadata", "found/eval_graph", "found/gan",
    "found/compiled", "ranks/wrong_device/wrong_device.rank0",
]  # fmt: skip
TRAINING = [
    "recordings/cnn_multires", "recordings/gpt", "recordings/gpt_annotated", "recordings/gpt_varlen",
    "recordings/gpt_varlen_expandable", "recordings/leak_cycle", "recordings/leak_hook", "recordings/leak_losses",
    "recordings/leak_none_warmup", "recordings/million", "recordings/oom_train", "recordings/oom_train_expandable",
    "recordings/resnet50", "ranks/ddp/ddp.rank0", "ranks/ddp/ddp.rank1",
]  # fmt: skip


def opened(name: str) -> Recording:
    return load(DATA / f"{name}.pickle.xz")


def assert_sums(heap: Heap) -> None:
    total = heap.requested_bytes
    assert sum(row.bytes for row in heap.by_line) + heap.unattributed_bytes == total
    assert sum(row.bytes for row in heap.by_category.values()) == total
    assert sum(heap.by_phase.values()) == total
    assert sum(row.bytes for row in heap.by_stack) == total
    assert sum(row.inferred_bytes for row in heap.by_line) == heap.inferred_bytes
    assert len({row.place for row in heap.by_line}) == len(heap.by_line)
    assert [row.bytes for row in heap.by_line] == sorted(
        (row.bytes for row in heap.by_line), reverse=True
    )


@pytest.mark.parametrize("name", SUMMED)
def test_tables_sum_to_what_the_events_leave(name: str) -> None:
    view = opened(name).attribution()
    device = view.device
    change = {Action.ALLOC: 1, Action.FREE_COMPLETED: -1}
    left = [device.requested.base_bytes]
    for action, size in zip(
        device.events.action.tolist(), device.events.size.tolist(), strict=True
    ):
        left.append(left[-1] + change.get(action, 0) * size)
    chosen = random.Random(7).sample(range(len(left) - 1), 20)
    for event in [-1, device.requested.peak_event, len(left) - 2, *chosen]:
        heap = heap_at(view, event)
        assert heap.requested_bytes == left[event + 1]
        assert_sums(heap)
    assert (
        heap_at(view, device.requested.peak_event).requested_bytes
        == device.requested.peak_bytes
        == max(left)
    )


@pytest.mark.parametrize("name", TRAINING)
def test_little_of_a_training_runs_peak_has_no_line(name: str) -> None:
    heap = opened(name).peak()
    assert heap.unattributed_bytes < 0.05 * heap.requested_bytes
    assert sum(row.allocations for row in heap.by_line) > 0


def test_what_was_there_before_has_no_line() -> None:
    heap = opened("ranks/wrong_device/wrong_device.rank0").peak()
    assert heap.unattributed_bytes == 256 << 20


def test_lines_that_were_lent_are_counted_apart() -> None:
    heap = opened("recordings/gpt").peak()
    assert 0 < heap.inferred_bytes < heap.requested_bytes
    assert all(0 <= row.inferred_bytes <= row.bytes for row in heap.by_line)


def test_regions() -> None:
    heap = opened("found/metadata").peak()
    assert set(heap.by_region) <= {"data", "forward", "loss", "backward"}
    assert heap.by_region["forward"] > 100 << 20
    assert opened("recordings/gpt").peak().by_region == {}


def test_the_step_of_a_moment() -> None:
    view = opened("recordings/gpt").attribution()
    assert heap_at(view, -1).step is None
    assert [heap_at(view, int(start)).step for start in view.steps.starts] == [0, 1, 2, 3]
    assert heap_at(opened("recordings/streams").attribution(), 5).step is None


def test_code_is_the_librarys_line_below_the_users() -> None:
    heap = load(DATA / "failures/lora.cap80.vram").explain().heap
    assert heap is not None
    names = {f"{row.place.file.rsplit('/', 1)[-1]}:{row.place.line}" for row in heap.by_code}
    assert "modeling_llama.py:175" in names
    assert not any(
        "_call_impl" in row.place.function or "/torch/nn/" in row.place.file for row in heap.by_code
    )
    assert sum(row.bytes for row in heap.by_code) + heap.unattributed_bytes == heap.requested_bytes
