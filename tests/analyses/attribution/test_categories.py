"""Categories against what the programs counted: bytes of their parameters, gradients and
optimizers' state.
"""

from __future__ import annotations

import json

import pytest

from support.recordings import DATA, truth_of
from vramlens import explain, load
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.phases import Phase
from vramlens.analyses.memory.heap import Heap, heap_at

COUNTED = sorted(
    path.stem
    for path in (DATA / "found").glob("*.json")
    if "parameter_bytes" in json.loads(path.read_text())["facts"]
    and path.stem not in ("late_start", "wrapped", "optimizer_oom")
)
"""Recorded from the first allocation on, counted when the snapshot was taken."""


def heap(name: str, at: str = "end") -> Heap:
    found = explain(DATA / f"{name}.pickle.xz", at=at).heap
    assert found is not None
    return found


def held(found: Heap, category: str) -> int:
    return found.by_category[category].bytes if category in found.by_category else 0


@pytest.mark.parametrize("name", COUNTED)
def test_what_the_model_holds_at_the_end(name: str) -> None:
    facts, found = truth_of(f"found/{name}")["facts"], heap(f"found/{name}")
    assert held(found, "parameters") == facts["parameter_bytes"] + facts["buffer_bytes"]
    assert held(found, "optimizer_state") == facts["optimizer_bytes"]
    assert held(found, "gradients") == facts["gradient_bytes"]


@pytest.mark.parametrize("name", COUNTED)
def test_what_an_optimizer_kept_is_proven(name: str) -> None:
    found = heap(f"found/{name}")
    shared = name == "resume_optimizer"  # it goes on with what was loaded
    if held(found, "optimizer_state"):
        assert found.by_category["optimizer_state"].verdict == ("possible" if shared else "proven")
        assert found.by_category["parameters"].verdict == "proven"


@pytest.mark.parametrize("name", [name for name in COUNTED if not name.startswith("resume")])
def test_of_all_that_an_optimizer_asked_for_only_what_it_kept_is_state(name: str) -> None:
    view = load(DATA / f"found/{name}.pickle.xz").attribution()
    state = view.categories.category == Category.OPTIMIZER_STATE
    total = int(view.device.allocations.requested_bytes[state].sum())
    assert total == truth_of(f"found/{name}")["facts"]["optimizer_bytes"]


@pytest.mark.parametrize(
    "name", ["wrapped_full", "grads_kept", "gan", "conv_workspace", "checkpointing", "eval_graph"]
)
def test_before_the_first_optimizer_step_every_parameter_has_its_gradient(name: str) -> None:
    view = load(DATA / f"found/{name}.pickle.xz").attribution()
    facts = truth_of(f"found/{name}")["facts"]
    first = int(view.device.allocations.born[view.phases.phase == Phase.OPTIMIZER].min())
    found = held(heap_at(view, first - 1), "gradients")
    if name == "gan":  # the critic's come first: the generator's are still to be made
        assert 0 < found < facts["parameter_bytes"]
    else:
        assert found == facts["parameter_bytes"]


@pytest.mark.parametrize(
    "name", ["wrapped_full", "stranded_stream", "double_load", "metadata", "conv_workspace"]
)
def test_every_optimizer_step_finds_each_gradient_once(name: str) -> None:
    view = load(DATA / f"found/{name}.pickle.xz").attribution()
    weights = truth_of(f"found/{name}")["facts"]["parameter_bytes"]
    ends = [int(end) - 1 for end in view.phases.span_end]
    assert [held(heap_at(view, end), "gradients") for end in ends] == [weights] * len(view.steps)


def test_a_step_that_failed_left_its_part() -> None:
    found = heap("found/optimizer_oom")
    facts = truth_of("found/optimizer_oom")["facts"]
    assert held(found, "parameters") == facts["parameter_bytes"]
    assert held(found, "gradients") == facts["gradient_bytes"]
    assert 0 < held(found, "optimizer_state") < 2 * facts["parameter_bytes"]


def test_what_was_there_before_is_possible_at_most() -> None:
    facts, found = truth_of("found/late_start")["facts"], heap("found/late_start")
    assert found.by_category["parameters"].verdict == "possible"
    assert found.by_category["optimizer_state"].verdict == "possible"
    told = held(found, "parameters") + held(found, "optimizer_state")
    assert (
        0 <= told - facts["parameter_bytes"] - facts["optimizer_bytes"] <= 1 << 20
    )  # a workspace of a weight's size


@pytest.mark.parametrize("name", ["grads_kept", "gan", "conv_workspace", "wrapped_full"])
def test_cublas_keeps_workspaces(name: str) -> None:
    found = heap(f"found/{name}")
    assert held(found, "workspace") in (2 * 33_554_432, 2 * 33_554_432 + 1_048_576)


def test_benchmarking_convolutions_is_workspace() -> None:
    found = heap("found/conv_workspace", at="peak")
    assert held(found, "workspace") == 2_355_363_840


def test_the_forward_pass_keeps_activations() -> None:
    whole, checkpointed = heap("found/wrapped_full", "peak"), heap("found/checkpointing", "peak")
    assert whole.by_category["activations"].verdict == "likely"
    assert held(whole, "activations") > held(whole, "parameters")
    assert held(checkpointed, "activations") < checkpointed.requested_bytes / 3
