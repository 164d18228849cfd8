"""Phases: the backward pass's memory gets the line that a slow loop over the events gives it."""

from __future__ import annotations

import pickle
from collections import Counter

import pytest

from support.oracle import MIB
from support.recordings import DATA, event, read, snapshot
from vramlens import Recording, load
from vramlens.analyses.attribution.attribution import attribute
from vramlens.analyses.attribution.phases import Phase
from vramlens.trace import NO_STACK, Action

SMALL = [
    "recordings/gpt", "recordings/gpt_annotated", "recordings/resnet50", "recordings/leak_hook",
    "recordings/leak_none_warmup", "recordings/oom_train", "found/gan", "found/grad_accumulation", "found/eval_graph",
    "found/checkpointing", "found/compiled", "found/late_start", "found/wrapped", "ranks/ddp/ddp.rank0",
]  # fmt: skip
PASSES = {
    "recordings/gpt": 4, "recordings/resnet50": 3, "recordings/leak_none_warmup": 40, "found/gan": 10,
    "found/grad_accumulation": 12, "found/checkpointing": 3, "found/cpp_stacks": 2, "found/oom_recovered": 5,
    "found/first_step_to_come": 1, "recordings/leak_outputs": 0, "recordings/leak_exception": 0,
    "recordings/streams": 0, "found/inference_kv": 0,
}  # fmt: skip
"""Backward passes as the programs run them; of ``oom_recovered``, one that failed."""


def opened(name: str) -> Recording:
    return load(DATA / f"{name}.pickle.xz")


@pytest.mark.parametrize("name", SMALL)
def test_lines_are_lent_by_what_the_pass_gives_up_next(name: str) -> None:
    recording = opened(name)
    view = recording.attribution()
    phases, events, stacks = view.phases, view.device.events, recording.stacks
    allocations, row_of = view.device.allocations, view.device.allocation_of_event.tolist()
    action = events.action.tolist()
    checked = 0

    def lender(event: int) -> int | None:
        """The line of the forward allocation that is given up at an event."""
        row = row_of[event]
        if action[event] != Action.FREE_REQUESTED or row < 0 or phases.phase[row] != Phase.FORWARD:
            return None
        return int(phases.frame[row]) if phases.frame[row] >= 0 else None

    for row in range(len(allocations)):
        span, stack = int(phases.span[row]), int(allocations.stack[row])
        if span < 0 or (stack != NO_STACK and stacks.user_frame[stack] >= 0):
            continue
        born = int(allocations.born[row])
        after = range(born + 1, min(int(phases.span_end[span]), len(events)))
        before = range(born, int(phases.span_start[span]) - 1, -1)
        line = next(
            (found for event in (*after, *before) if (found := lender(event)) is not None), None
        )
        if line is None:
            continue
        checked += 1
        assert phases.frame[row] == line, row
        assert phases.inferred[row]
    assert checked > 5


@pytest.mark.parametrize("name", PASSES)
def test_as_many_backward_passes_as_the_program_ran(name: str) -> None:
    assert len(opened(name).attribution().phases.span_start) == PASSES[name]


@pytest.mark.parametrize("gives_up", [True, False])
def test_threads_without_frames_are_autograds_if_they_give_up_what_lines_asked_for(
    gives_up: bool,
) -> None:
    base = 1 << 30
    events = [
        event("segment_alloc", base, 2 * MIB),
        event("alloc", base, 512),
        event("alloc", base + 512, 1024, frames=[]),
        event("free_requested" if gives_up else "snapshot", base, 512),
        event("free_completed" if gives_up else "snapshot", base, 512),
        event("alloc", base + 2048, 512),
    ]
    trace = read(pickle.dumps(snapshot(events, [])))
    view = attribute(trace, trace.devices[0])
    row = int(view.device.allocation_of_event[2])
    assert len(view.phases.span_start) == gives_up
    assert (view.phases.phase[row] == Phase.BACKWARD) == gives_up
    assert bool(view.phases.inferred[row]) == gives_up


@pytest.mark.parametrize("name", SMALL)
def test_passes_follow_each_other(name: str) -> None:
    phases = opened(name).attribution().phases
    assert (phases.span_start <= phases.span_last).all()
    assert (phases.span_last < phases.span_end).all()
    assert (phases.span_end[:-1] <= phases.span_start[1:]).all()
    assert ((phases.span >= 0) >= (phases.phase == Phase.BACKWARD)).all()
    assert not (phases.inferred & (phases.frame < 0)).any()


def test_only_lent_lines_are_inferred() -> None:
    recording = opened("recordings/gpt")
    view = recording.attribution()
    own = recording.stacks.user_frame[view.device.allocations.stack]
    assert (view.phases.inferred == (own < 0)).all()
    assert (view.phases.frame[own >= 0] == own[own >= 0]).all()


@pytest.mark.parametrize(
    ("name", "phases"),
    [
        ("recordings/gpt", {Phase.OTHER, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}),
        (
            "found/eval_graph",
            {Phase.OTHER, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.EVALUATION},
        ),
        (
            "found/eval_graph_fixed",
            {Phase.OTHER, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.EVALUATION},
        ),
    ],
)
def test_phases_of_whole_programs(name: str, phases: set[Phase]) -> None:
    assert {Phase(p) for p in opened(name).attribution().phases.phase.tolist()} == phases


def test_evaluation_is_the_validation_of_one_step() -> None:
    view = opened("found/eval_graph").attribution()
    rows = view.phases.phase == Phase.EVALUATION
    assert set(view.step[rows].tolist()) == {3}
    lines = Counter(view.place(int(frame)) for frame in view.phases.frame[rows])
    assert {place.function for place in lines if place is not None} <= {
        "forward",
        "validate",
        "batch_of",
    }


def test_nothing_is_evaluated_in_plain_training() -> None:
    for name in ("recordings/gpt", "recordings/resnet50", "found/gan", "found/grad_accumulation"):
        assert not (opened(name).attribution().phases.phase == Phase.EVALUATION).any(), name
