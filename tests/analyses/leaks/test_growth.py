"""Leaks: the line, and the bytes per step, that the programs' own loops leave behind."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from support.oracle import MIB
from support.recordings import DATA, event, read, snapshot, truth_of
from vramlens import Recording, load
from vramlens.analyses.attribution.attribution import attribute
from vramlens.analyses.leaks.growth import leaks_of
from vramlens.analyses.leaks.recorded_leak import RecordedLeak
from vramlens.analyses.leaks.recorded_leaks import leaks_of_trace
from vramlens.trace import Action

LEAKS = {
    "leak_losses": ("lm_loss", 59),
    "leak_outputs": ("leak_outputs", 146),
    "leak_cycle": ("leak_cycle", 154),
    "leak_hook": ("forward", 39),
    "leak_exception": ("f", 169),
}
"""Where recordings/workloads.py asks for what it keeps."""
PROVEN = {"leak_outputs"}
"""It keeps the activations of a whole pass, which nothing does on purpose, to the end of the
program. (leak_exception
keeps all of the program with them: its end is not seen, and a repeating pattern alone tells its
    steps apart.)
"""
BYTES_A_STEP = {
    "leak_losses": 4,  # one float
    "leak_cycle": 3_000_000 * 4,
    "leak_hook": 8 * 256 * 256 * 4,  # block 2's output: batch × tokens × width
}
LEAKLESS = sorted(
    [f"recordings/{path.stem.removesuffix('.pickle')}" for path in (DATA / "recordings").glob("*.pickle.xz")
     if "leak" not in path.name]
    + ["recordings/leak_none_warmup"]
    + [f"found/{path.stem.removesuffix('.pickle')}" for path in (DATA / "found").glob("*.pickle.xz")]
)  # fmt: skip


def opened(name: str) -> Recording:
    return load(DATA / f"{name}.pickle.xz")


def the_leak(name: str) -> RecordedLeak:
    (leak,) = opened(name).explain().leaks
    return leak


def growth_between(recording: Recording, line: int) -> int:
    """Requested bytes more from one coming of a loop's first line to the next: the median."""
    device, stacks = recording.devices[0], recording.stacks
    lines = {i for i in range(len(stacks)) if any(frame.line == line for frame in stacks.of(i))}
    births = [
        event
        for event, (action, stack) in enumerate(
            zip(device.events.action, device.events.stack, strict=True)
        )
        if action == Action.ALLOC and int(stack) in lines
    ]
    # The loop's first request is a batch of token numbers: 8 bytes each.
    starts = [
        event for event in births if device.events.size[event] == device.events.size[births[0]]
    ]
    return int(np.median(np.diff(device.requested_curve[np.array(starts) - 1])))


@pytest.mark.parametrize("name", LEAKS)
def test_the_line_that_leaks(name: str) -> None:
    leak = the_leak(f"recordings/{name}")
    assert leak.place is not None
    assert (leak.place.function, leak.place.line) == LEAKS[name]
    assert leak.verdict == ("proven" if name in PROVEN else "likely")
    assert leak.owner is None
    assert leak.kind is None


@pytest.mark.parametrize("name", BYTES_A_STEP)
def test_bytes_that_a_step_leaves_behind(name: str) -> None:
    leak = the_leak(f"recordings/{name}")
    assert leak.bytes_per_step == BYTES_A_STEP[name]
    assert leak.bytes == leak.steps * leak.bytes_per_step
    assert leak.steps == 11  # of 12: the last may still be using its own


@pytest.mark.parametrize(
    ("name", "line"), [("leak_outputs", 146), ("leak_exception", 169), ("oom_leak", 268)]
)
def test_a_kept_graph_is_one_leak(name: str, line: int) -> None:
    leak = the_leak(f"recordings/{name}")
    grown = growth_between(opened(f"recordings/{name}"), line)
    assert abs(leak.bytes_per_step - grown) <= 0.01 * grown


def test_a_leak_that_ended_in_a_failure_is_judged_there() -> None:
    leak = the_leak("recordings/oom_leak")
    peak = truth_of("recordings/oom_leak")["stats"]["requested_bytes.all.peak"]
    assert leak.place is not None
    assert (leak.place.line, leak.place.function) == (268, "oom_leak")
    assert 0.8 * peak < leak.bytes < peak


@pytest.mark.parametrize("name", [name for name in LEAKLESS if name != "recordings/oom_leak"])
def test_what_does_not_leak(name: str) -> None:
    assert opened(name).explain().leaks == ()


def test_more_steps_make_it_more_certain() -> None:
    view = opened("recordings/leak_outputs").attribution()

    def verdicts(step: int) -> list[tuple[str, int | None]]:
        return [
            (leak.verdict, leak.needs_steps)
            for leak in leaks_of(view, int(view.steps.starts[step]))
        ]

    assert verdicts(3) == []
    assert verdicts(4) == [("possible", 1)]
    assert verdicts(5) == [("likely", None)]
    assert verdicts(7) == [("likely", None)]
    assert verdicts(8) == [("proven", None)]  # the program's end is seen, whenever it is judged
    view = opened("recordings/leak_cycle").attribution()
    assert verdicts(5) == [("possible", 4)]  # then it takes 100 MiB, and much of all that is held
    assert verdicts(9) == [("likely", None)]
    assert leaks_of(opened("recordings/streams").attribution()) == ()


def loop(kept_in: set[int], steps: int = 12) -> tuple[RecordedLeak, ...]:
    """The leaks of a loop of which some steps keep 512 bytes."""
    base, events, marks = 1 << 30, [event("segment_alloc", 1 << 30, 2 * MIB, time_us=0)], []
    for step in range(steps):
        address = base + 4096 * step
        events.append(event("alloc", address, 512, time_us=10 * step + 1))
        if step not in kept_in:
            events.append(event("free_requested", address, 512, time_us=10 * step + 2))
            events.append(event("free_completed", address, 512, time_us=10 * step + 2))
        marks.append(
            {"stage": "END", "name": "vramlens.step", "device": 0, "time_us": 10 * step + 5}
        )
    trace = read(pickle.dumps(snapshot(events, []) | {"external_annotations": marks}))
    view = attribute(trace, trace.devices[0])
    assert (len(view.steps), view.steps.source) == (steps, "vramlens.step")
    return leaks_of(view)


def test_what_grows_with_every_step_leaks() -> None:
    (leak,) = loop(set(range(12)))
    assert (leak.verdict, leak.bytes_per_step, leak.bytes, leak.steps) == (
        "possible",
        512,
        11 * 512,
        11,
    )
    assert leak.needs_steps == 117
    (late,) = loop({5, 6, 7, 8, 9, 10, 11})
    assert (late.verdict, late.steps, late.needs_steps) == ("possible", 6, 122)


def test_every_third_step_takes_longer_to_tell() -> None:
    (leak,) = loop(set(range(0, 390, 3)), 390)
    assert (leak.verdict, leak.steps) == ("likely", 130)
    assert leak.bytes_per_step == round(512 / 3)
    (early,) = loop(set(range(0, 24, 3)), 24)
    assert (early.verdict, early.needs_steps) == ("possible", 360)
    (told,) = loop(set(range(0, 24 + 360, 3)), 24 + 360)
    assert told.verdict == "likely"


@pytest.mark.parametrize(
    "kept_in", [set(), {0}, {0, 1, 2, 3}, {0, 3, 6, 9}, {1, 3, 5, 7, 9}, {11}, {9, 10, 11}]
)
def test_what_grows_now_and_then_or_no_longer_does_not(kept_in: set[int]) -> None:
    assert loop(kept_in) == ()


@pytest.mark.parametrize(
    "name", ["recordings/leak_outputs.pickle.xz", "faults/undetached_iterate.vram"]
)
def test_what_the_last_step_left_is_a_loops_variable(name: str) -> None:
    """Steps before it left the same, and each of those went in the step that followed."""
    report = leaks_of_trace(load(DATA / name))
    once = [leak for leak in report.leaks if leak.reason.startswith("allocated once and kept")]
    assert once == []
