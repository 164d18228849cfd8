"""Steps: as many as the programs took, each with the peak that the allocator measured in it."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.recordings import DATA, event, read, snapshot, truth_of
from vramlens import explain
from vramlens.analyses.attribution.steps import PATTERN, Steps, steps_of
from vramlens.trace import BEFORE

COUNTS = {
    "cnn_multires": 30, "gpt": 4, "gpt_annotated": 4, "gpt_varlen": 40, "gpt_varlen_expandable": 40, "leak_cycle": 12,
    "leak_exception": 10, "leak_hook": 12, "leak_losses": 12, "leak_none_warmup": 40, "leak_outputs": 12,
    "million": 330, "resnet50": 3,
}  # fmt: skip
"""As recordings/workloads.py takes them."""

MEASURED = sorted(
    path.stem
    for path in (DATA / "found").glob("*.json")
    if json.loads(path.read_text())["steps"]
    and not path.stem.startswith(
        (
            "wrapped",
            "oom_wrapped",
            "eval_graph",
            "inference_kv",
            "private_pools",
            "first_step",
            "optimizer_oom",
        )
    )
)
"""Programs whose every step ends with an optimizer's, recorded from the first step on; but see
the tests below.
"""


@pytest.mark.parametrize("name", COUNTS)
def test_as_many_as_the_program_took(name: str) -> None:
    assert explain(DATA / f"recordings/{name}.pickle.xz").steps.count == COUNTS[name]


@pytest.mark.parametrize("name", MEASURED)
def test_each_has_the_peak_that_was_measured(name: str) -> None:
    truth = truth_of(f"found/{name}")
    steps = explain(DATA / f"found/{name}.pickle.xz").steps
    measured = truth["steps"]["requested_bytes"]
    assert list(steps.peak_bytes[: len(measured)]) == measured
    assert steps.count == len(measured) + (
        "oom_message" in truth
    )  # the one that failed was not measured
    assert steps.source in ("optimizer marks", "optimizer frames")


def test_turns_and_micro_batches_are_in_the_list() -> None:
    assert {"gan", "grad_accumulation", "late_start", "spike_oom", "oom_recovered"} <= set(MEASURED)


def test_a_wrapped_ring_keeps_the_last_steps() -> None:
    for name in ("wrapped", "oom_wrapped"):
        measured = truth_of(f"found/{name}")["steps"]["requested_bytes"]
        seen = explain(DATA / f"found/{name}.pickle.xz").steps.peak_bytes
        whole = seen[1:] if name == "wrapped" else seen[1:-1]
        assert len(whole) >= 2
        assert list(whole) == measured[-len(whole) :]


def test_validation_belongs_to_the_step_around_it() -> None:
    measured = truth_of("found/eval_graph")["steps"]["requested_bytes"]
    seen = list(explain(DATA / "found/eval_graph.pickle.xz").steps.peak_bytes)
    assert seen == [*measured[:3], max(measured[3:5]), measured[5]]


@pytest.mark.parametrize(
    "name", ["recordings/oom_fragmented", "recordings/streams", "found/oom_holes"]
)
def test_no_loop_no_steps(name: str) -> None:
    steps = explain(DATA / f"{name}.pickle.xz").steps
    assert (steps.count, steps.source, steps.peak_bytes) == (0, None, ())


def test_without_marks_a_pattern_tells() -> None:
    assert explain(DATA / "recordings/leak_outputs.pickle.xz").steps.source == "repeating pattern"


@given(st.sets(st.integers(1, 200), max_size=20), st.lists(st.integers(-5, 300), min_size=1))
def test_every_event_has_one_step_and_later_events_later_ones(
    inner: set[int], events: list[int]
) -> None:
    starts = np.array([0, *sorted(inner)], np.int64)
    steps = Steps(starts, np.append(starts[1:], 201), "optimizer marks")
    ordered = np.sort(np.array(events, np.int64))
    found = steps.of(ordered)
    assert (np.diff(found) >= 0).all()
    for place, step in zip(ordered.tolist(), found.tolist(), strict=True):
        assert step == (
            BEFORE if place < 0 else sum(start <= place for start in starts.tolist()) - 1
        )


def test_without_steps_nothing_is_in_one() -> None:
    none = Steps(np.zeros(0, np.int64), np.zeros(0, np.int64), None)
    assert len(none) == 0
    assert none.of(np.array([-1, 0, 9])).tolist() == [BEFORE] * 3


@pytest.mark.parametrize("microbatches", [1, 3])
def test_steps_after_an_optimizer_that_allocates_in_the_first_alone(microbatches: int) -> None:
    """Its states; then it updates in place, and a repeating sequence tells the steps."""
    frames = {
        name: [{"filename": file, "line": 7, "name": name}]
        for name, file in {
            "build": "model.py",
            "forward": "model.py",
            "loss": "model.py",
            "step": "torch/optim/adamw.py",
        }.items()
    }
    events = [event("alloc", 1 << 20, 4096, frames=frames["build"])]

    def passing(name: str, address: int) -> None:
        events.append(event("alloc", address, 2048, frames=frames[name]))
        events.append(event("free_completed", address, 2048))

    for step in range(6):
        for _ in range(microbatches):
            for address in (1, 2, 3):
                passing("forward", address << 22)
            passing("loss", 1 << 25)
        if not step:
            events.append(event("alloc", 1 << 26, 8192, frames=frames["step"]))
    trace = read(pickle.dumps(snapshot(events, [])))
    steps = steps_of(trace, trace.devices[0])
    assert (len(steps), steps.source) == (6, PATTERN)
