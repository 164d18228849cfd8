"""Names of tensors: joined to what is alive at the end, they prove categories and tell modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.oracle import MIB
from support.recordings import DATA, block, data_of, event, segment, snapshot, truth_of
from support.vram_files import tensors, vram
from vramlens import Recording, load
from vramlens.analyses.attribution.categories import Category, Certainty
from vramlens.analyses.attribution.names import number_range
from vramlens.analyses.memory.heap import heap_at

NAME = "found/eval_graph"
BASE = 0x7F0000000000


def bare() -> Recording:
    return load(DATA / f"{NAME}.pickle.xz")


def weights_and_state(recording: Recording) -> tuple[Any, Any]:
    """The model's parameters and the optimizer's state, by the lines that made them."""
    view = recording.attribution()
    allocations, stacks = view.device.allocations, recording.stacks
    alive = np.flatnonzero(allocations.free_requested >= len(view.device.events))

    def made_by(function: str) -> Any:
        return [
            i
            for i in alive
            if function in {frame.function for frame in stacks.of(int(allocations.stack[i]))}
        ]

    return made_by("_apply"), made_by("_init_group")


def named(tmp_path: Path, extra: list[dict[str, Any]] | None = None) -> Recording:
    recording = bare()
    weights, state = weights_and_state(recording)
    half = len(state) // 2
    rows = tensors(recording, weights, lambda n: f"model.blocks.{n}.qkv.weight", "parameter")
    rows += tensors(
        recording,
        state[:half],
        lambda n: f"optimizer.exp_avg[model.blocks.{n}.qkv.weight]",
        "optimizer_state",
    )
    rows += tensors(
        recording,
        state[half:],
        lambda n: f"optimizer.exp_avg_sq[model.blocks.{n}.qkv.weight]",
        "optimizer_state",
    )
    return load(vram(tmp_path / "a.vram", data_of(NAME), names={"tensors": rows + (extra or [])}))


def test_what_is_named_is_proven(tmp_path: Path) -> None:
    facts = truth_of(NAME)["facts"]
    view = named(tmp_path).attribution()
    sizes = view.device.allocations.requested_bytes
    for category, size in (
        (Category.PARAMETERS, "parameter_bytes"),
        (Category.OPTIMIZER_STATE, "optimizer_bytes"),
    ):
        rows = view.names.named & (view.categories.category == category)
        assert abs(int(sizes[rows].sum()) - facts[size]) <= 0.01 * facts[size]
        assert set(view.categories.certainty[rows].tolist()) == {Certainty.PROVEN}


def test_names_join_what_is_alive_at_the_end_only(tmp_path: Path) -> None:
    view = named(tmp_path).attribution()
    assert (
        view.device.allocations.free_requested[view.names.named] == len(view.device.events)
    ).all()
    assert not bare().attribution().names.named.any()


def test_gradients_of_earlier_steps_are_like_the_named_ones(tmp_path: Path) -> None:
    recording = bare()
    view = recording.attribution()
    allocations = view.device.allocations
    # This program gave all gradients up: one that died outlives its pass as the others did.
    died = np.flatnonzero(
        (view.categories.category == Category.GRADIENTS) & (view.phases.span >= 0)
    )
    assert len(died)
    big = died[np.argmax(allocations.requested_bytes[died])]
    alive = np.flatnonzero(allocations.free_requested >= len(view.device.events))
    twins = alive[allocations.requested_bytes[alive] == allocations.requested_bytes[big]]
    rows = tensors(recording, twins[:1], lambda n: "grad[model.tok.weight]", "gradient")
    found = load(vram(tmp_path / "a.vram", data_of(NAME), names={"tensors": rows})).attribution()
    assert found.categories.category[twins[0]] == Category.GRADIENTS
    assert found.categories.certainty[twins[0]] == Certainty.PROVEN
    assert found.categories.category[big] == Category.GRADIENTS


def test_names_from_an_earlier_moment_join_what_was_alive_then(tmp_path: Path) -> None:
    """A program whose model is gone at its end was looked at while it ran."""
    view = bare().attribution()
    device, allocations = view.device, view.device.allocations
    event_ = device.requested.peak_event
    alive = np.flatnonzero((allocations.born <= event_) & (allocations.free_requested > event_))
    rows = tensors(bare(), alive, lambda n: f"model.{n}.weight", "parameter")
    time_us = int(device.clock_us[event_])
    assert event_ + 1 == len(device.events) or device.clock_us[event_ + 1] > time_us
    parts = {"tensors": [row | {"time_us": time_us} for row in rows]}
    found = load(vram(tmp_path / "a.vram", data_of(NAME), names=parts)).attribution()
    assert np.flatnonzero(found.names.named).tolist() == alive.tolist()
    heap = heap_at(found, event_)
    assert sum(heap.by_module.values()) == heap.requested_bytes
    assert heap.by_category["parameters"].bytes == heap.requested_bytes
    for odd in (0, 5, -7, "then", 1 << 59):
        parts = {"tensors": [row | {"time_us": odd} for row in rows]}
        load(vram(tmp_path / "b.vram", data_of(NAME), names=parts)).attribution()


def test_gradients_that_died_are_known_by_their_stack_and_size(tmp_path: Path) -> None:
    where = [{"filename": "train.py", "line": 9, "name": "keep"}]
    events = []
    for n in range(6):
        events.append(event("alloc", BASE, MIB, frames=where))
        events.append(event("alloc", BASE + 2 * MIB, MIB + 512, frames=where))
        if n < 5:
            for address, size in ((BASE, MIB), (BASE + 2 * MIB, MIB + 512)):
                events += [
                    event(action, address, size) for action in ("free_requested", "free_completed")
                ]
    blocks = [
        block(BASE, MIB, MIB),
        block(BASE + MIB, MIB, 0, "inactive"),
        block(BASE + 2 * MIB, MIB + 512, MIB + 512),
    ]
    blocks.append(block(BASE + 3 * MIB + 512, 17 * MIB - 512, 0, "inactive"))
    value = snapshot(
        [event("segment_alloc", BASE, 20 * MIB), *events], [segment(BASE, 20 * MIB, blocks)]
    )
    names = [
        {"device": 0, "address": BASE, "bytes": MIB, "name": "grad[model.w]", "kind": "gradient"}
    ]
    view = load(vram(tmp_path / "a.vram", value, names={"tensors": names})).attribution()
    gradients = np.flatnonzero(view.categories.category == Category.GRADIENTS)
    assert set(view.device.allocations.requested_bytes[gradients].tolist()) == {MIB}
    assert view.categories.certainty[gradients].tolist() == [Certainty.LIKELY] * 5 + [
        Certainty.PROVEN
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"device": 0, "address": 12345, "bytes": 8, "name": "model.gone", "kind": "parameter"},
        {"device": 5, "address": 12345, "bytes": 8, "name": "model.elsewhere", "kind": "parameter"},
        {"device": 0, "address": -1, "bytes": 8, "name": "model.odd", "kind": "parameter"},
    ],
)
def test_names_of_nothing_here_are_passed_over(tmp_path: Path, wrong: dict[str, Any]) -> None:
    plain, more = named(tmp_path), named(tmp_path, extra=[wrong])
    assert plain.peak() == more.peak()


def test_a_name_larger_than_its_block_is_not_its_name(tmp_path: Path) -> None:
    recording = bare()
    weights, _ = weights_and_state(recording)
    rows = tensors(recording, weights[:2], lambda n: f"model.{n}", "parameter")
    rows[0]["bytes"] = 1 << 40
    found = load(vram(tmp_path / "a.vram", data_of(NAME), names={"tensors": rows})).attribution()
    assert np.flatnonzero(found.names.named).tolist() == [weights[1]]


def test_of_two_names_of_one_storage_the_parameters_stays(tmp_path: Path) -> None:
    recording = bare()
    weights, _ = weights_and_state(recording)
    rows = tensors(recording, weights[:1], lambda n: "alias", "tensor")
    rows += tensors(recording, weights[:1], lambda n: "model.head.weight", "parameter")
    found = load(vram(tmp_path / "a.vram", data_of(NAME), names={"tensors": rows})).attribution()
    assert found.names.name(weights[0]) == "model.head.weight"


def test_modules_from_names_sum_with_the_rest_to_the_whole(tmp_path: Path) -> None:
    facts = truth_of(NAME)["facts"]
    recording = named(tmp_path)
    view = recording.attribution()
    heap = heap_at(view, len(view.device.events) - 1)
    inside = sum(heap.by_module.values())
    assert set(heap.by_module) == {f"model.blocks.{n}.qkv" for n in range(len(heap.by_module))}
    assert abs(inside - facts["parameter_bytes"] - facts["optimizer_bytes"]) <= 0.01 * inside
    assert inside <= heap.requested_bytes


def test_lines_with_few_names_have_them(tmp_path: Path) -> None:
    heap = named(tmp_path).explain(at="end").heap
    assert heap is not None
    (line,) = (line for line in heap.by_line if line.category == "parameters" and line.names)
    assert line.names == (f"model.blocks.{{0-{line.allocations - 1}}}.qkv.weight",)
    assert all(not line.names for line in bare().peak().by_line)


def test_named_bytes_count_names_modules_and_lines(tmp_path: Path) -> None:
    heap = named(tmp_path).peak()
    assert (
        heap.requested_bytes - heap.unattributed_bytes <= heap.named_bytes <= heap.requested_bytes
    )
    assert bare().peak().named_bytes == heap.requested_bytes - bare().peak().unattributed_bytes


def test_ranges_of_numbers() -> None:
    assert [number_range(set(each)) for each in ((3,), range(12), (0, 3, 6), range(0, 64, 2))] == [
        "3", "{0-11}", "{0,3,6}", "{0…62}"]  # fmt: skip
