"""Leaks of whole recordings: six kinds and more are found, what only looks like one is not;
owners, ends, limits.
"""

from __future__ import annotations

import json
import pickle
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import leak_attacks
from support.documents import headings, sentences_of
from support.leak_programs import (
    BASE,
    CALL,
    LEAK_LINE,
    LEAKS,
    LOOK_ALIKES,
    MAIN,
    Run,
    Truth,
    at,
    made,
)
from support.oracle import MIB
from support.recordings import DATA, block, data_of, event, read, segment, snapshot
from support.vram_files import META, TOTAL, vram
from vramlens import load
from vramlens.analyses.attribution.attribution import attribute
from vramlens.analyses.failure.failed_request import Outside
from vramlens.analyses.leaks.growth import leaks_at
from vramlens.analyses.leaks.rate import predicted, prediction_of, rate_of, time_to_full_text
from vramlens.analyses.leaks.recorded_leak import RecordedLeak
from vramlens.analyses.leaks.recorded_leaks import RecordedLeakReport, leaks_of_trace
from vramlens.analyses.leaks.rhythm import Rhythm, rhythm_of
from vramlens.analyses.recording_explanation import explain_trace
from vramlens.errors import UsageError
from vramlens.ground.verdict import Verdict
from vramlens.report.leaks.story import leaks_document
from vramlens.trace import Trace

STEPS = (12, 40)
SEEDS = ((0, False), (0, True), (1, True), (5, False))
"""What differs from run to run, and whether the recording goes on to the program's end."""
FREED = ("free_requested", "free_completed")
NO_LEAK = ("leak_none_warmup", "gpt", "resnet50", "gpt_varlen", "cnn_multires", "gpt_annotated", "streams", "million",
           "graphs", "gpt_varlen_expandable")  # fmt: skip


def opened(name: str) -> Trace:
    return load(DATA / f"{name}.pickle.xz")


def growing(report: RecordedLeakReport) -> list[RecordedLeak]:
    return [leak for leak in report.leaks if leak.verdict != "not a problem"]


def judged(run: Run) -> list[RecordedLeak]:
    trace = run.trace()
    return [
        leak
        for leak in leaks_at(attribute(trace, trace.devices[0]))
        if leak.verdict != "not a problem"
    ]


# Made-up programs


def check_leak(truth: Truth, run: Run, steps: int) -> None:
    found = judged(run)
    assert all(leak.place is not None and leak.place.line == truth.line for leak in found)
    assert len(found) <= 1
    if truth.shows(steps, ends=run.ends):
        (leak,) = found
        assert leak.sure
        assert truth.bytes_per_step is not None
        # Of few steps of random length, those seen are not the mean of all.
        wide = 0.05 if steps > 20 or leak.low == leak.high else 0.15
        assert leak.bytes_per_step == pytest.approx(truth.bytes_per_step, rel=wide)
        assert leak.low <= leak.bytes_per_step <= leak.high
        assert leak.fix
    elif (
        not run.ends
        and steps >= truth.shows_after
        and sum(leak.bytes for leak in found) < 100 * MIB
    ):
        assert [leak.verdict for leak in found] == [
            "possible"
        ]  # the same data as a buffer that fills


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", LEAKS)
def test_what_leaks_is_found_with_its_line_and_rate(name: str, steps: int) -> None:
    for seed, ends in SEEDS:
        run, truth = made(LEAKS[name], steps, seed, ends=ends)
        check_leak(truth, run, steps)


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("name", ["every tenth step", "kept output"])
def test_long_recordings_tell_more(name: str, ends: bool) -> None:
    run, truth = made(LEAKS[name], 140, 0, ends=ends)
    check_leak(truth, run, 140)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_what_only_looks_like_a_leak_is_none(name: str, steps: int) -> None:
    for seed, ends in SEEDS:
        run, truth = made(LOOK_ALIKES[name], steps, seed, ends=ends)
        verdicts = {leak.verdict for leak in judged(run)}
        # One list from the program's beginning to its end, never emptied, is one that never would
        # have been.
        known = steps >= truth.shows_after or not (ends and name.startswith("epoch"))
        assert not verdicts & ({"proven", "likely"} if known else {"proven"})


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", leak_attacks.LOOK_ALIKES)
def test_other_look_alikes_are_never_sure(name: str, seed: int) -> None:
    run = Run(seed, marks=seed != 1)
    attack = leak_attacks.LOOK_ALIKES[name](run)
    report = leaks_of_trace(run.trace())
    assert all(leak.verdict.rank > Verdict(attack.never).rank for leak in report.leaks)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", leak_attacks.LEAKS)
def test_other_leaks_are_found_each_once(name: str, seed: int) -> None:
    run = Run(seed, marks=seed != 1)
    attack = leak_attacks.LEAKS[name](run)
    found = {
        leak.place.line: leak
        for leak in growing(leaks_of_trace(run.trace()))
        if leak.place is not None
    }
    assert sorted(found) == sorted(attack.rates)
    for line, rate in attack.rates.items():
        assert found[line].sure or not attack.sure
        assert rate is None or found[line].bytes_per_step == pytest.approx(rate, rel=0.05)


def test_a_kept_graph_is_one_leak_of_the_loops_line() -> None:
    run, _ = made(LEAKS["kept graph"], 20, 0)
    (leak,) = judged(run)
    assert (leak.verdict, leak.stacks, leak.allocations_per_step) == ("proven", 6, 6)
    assert leak.place is not None
    assert (leak.place.line, leak.place.function) == (LEAK_LINE, "train")
    assert leak.kind is None  # a list and a caught exception look the same


def test_statements_of_one_loop_that_keep_one_graph_are_one_leak() -> None:
    """The loss is computed on a line of its own: the leak's line is where most of the bytes are
    asked for.
    """
    run = Run(0)
    run.setup()

    def extra(_: int) -> None:
        for n in range(5):
            run.new(MIB, MAIN, at(LEAK_LINE), CALL, ("/home/user/model.py", 30 + n, "forward"))
        run.new(
            64 * 1024,
            MAIN,
            at(LEAK_LINE + 1),
            ("/usr/lib/python3.11/site-packages/torch/nn/functional.py", 9, "f"),
        )

    for step in range(15):
        run.step(extra, step)
    (leak,) = judged(run)
    assert (leak.place and leak.place.line, leak.bytes_per_step) == (LEAK_LINE, 5 * MIB + 64 * 1024)


def test_leaks_of_two_lists_are_two() -> None:
    run = Run(0)
    run.setup()
    for step in range(30):
        run.step(
            lambda s: run.new(MIB, MAIN, at(40)) and run.new(3 * MIB, MAIN, at(41)) and None, step
        )
    assert [(leak.place and leak.place.line, leak.bytes_per_step) for leak in judged(run)] == [
        (41, 3 * MIB),
        (40, MIB),
    ]


def test_under_a_trainer_of_a_library_each_line_is_a_leak_of_its_own() -> None:
    """All of the user's code stands under one line of theirs, trainer.fit(); a kept graph is
    still one leak.
    """
    fit = ("/usr/lib/python3.11/site-packages/trainer/loop.py", 7, "run")
    step = (MAIN, fit, at(70, "training_step"))

    def run_of(kept: Any) -> list[RecordedLeak]:
        run = Run(0)
        run.setup()
        run.layers = [(*step, ("/home/user/model.py", 30 + n, "forward")) for n in range(6)]
        for number in range(15):
            run.step(lambda _: kept(run), number)
        for each in run.events:  # the loop itself asks for nothing under the user's name
            each["frames"] = [
                frame | ({"filename": fit[0], "name": fit[2]} if frame["name"] == "train" else {})
                for frame in each["frames"]
            ]
        return judged(run)

    def hooks(run: Run) -> None:
        run.new(2 * MIB, *step, ("/home/user/model.py", 40, "hook_a"))
        run.new(MIB, *step, ("/home/user/model.py", 50, "hook_b"))

    assert [(leak.place and leak.place.line, leak.bytes_per_step) for leak in run_of(hooks)] == [
        (40, 2 * MIB),
        (50, MIB),
    ]

    def graph(run: Run) -> None:
        for n in range(4):
            run.new(
                MIB,
                *step[:2],
                at(71, "training_step"),
                CALL,
                ("/home/user/model.py", 30 + n, "forward"),
            )

    assert [(leak.place and leak.place.line, leak.bytes_per_step) for leak in run_of(graph)] == [
        (71, 4 * MIB)
    ]


def test_what_is_asked_for_from_many_places_grows_together() -> None:
    run = Run(0)
    run.setup()

    def extra(step: int) -> None:
        run.new(MIB, MAIN, at(LEAK_LINE), ("/home/user/paths.py", 100 + step, "deeper"))

    for step in range(30):
        run.step(extra, step)
    (leak,) = judged(run)
    assert (leak.verdict, leak.place and leak.place.line) == ("possible", LEAK_LINE)


@pytest.mark.parametrize(("kept_in", "verdict"), [("a list", "likely"), ("a deque", "possible")])
def test_what_its_functions_end_gave_back_before_the_last_step_had_grown(
    kept_in: str, verdict: str
) -> None:
    run = Run(0)
    run.setup()
    kept: list[int] = []
    for step in range(14):
        run.step(lambda _: kept.append(run.new(MIB, MAIN, at(LEAK_LINE))), step)
    run.finish(kept if kept_in == "a deque" else reversed(kept))
    (leak,) = judged(run)
    assert (leak.verdict, leak.place and leak.place.line, leak.bytes_per_step) == (
        verdict,
        LEAK_LINE,
        MIB,
    )
    for step in range(14, 30):
        run.step(lambda _: None, step)
    (leak,) = judged(run)
    assert (leak.verdict, leak.bytes_per_step) == (
        "possible",
        MIB,
    )  # the program went on: a list that is emptied
    assert "freed in step 14" in leak.reason


def test_what_is_made_anew_larger_in_every_step_is_possible() -> None:
    run = Run(0)
    run.setup()
    held: list[int] = []

    def extra(step: int) -> None:
        held.append(run.new((step + 1) * 2 * MIB, MAIN, at(LEAK_LINE)))
        if len(held) > 1:
            run.free(held.pop(0))

    for step in range(30):
        run.step(extra, step)
    (leak,) = judged(run)
    assert (leak.verdict, leak.place and leak.place.line, leak.bytes_per_step) == (
        "possible",
        LEAK_LINE,
        2 * MIB,
    )


def test_streams_made_again_and_again_are_a_family_of_their_own() -> None:
    run, _ = made(LEAKS["new streams"], 20, 0)
    (leak,) = judged(run)
    assert (leak.kind, leak.bytes_per_step, leak.rows) == ("stream", 20 * MIB, None)
    assert "stream" in (leak.fix or "")


def test_pools_are_told_by_the_line_that_captures_them() -> None:
    run = Run(0)
    leak_attacks.graphs_captured(run)
    (leak,) = judged(run)
    assert leak.kind == "pool"
    assert leak.place is not None
    assert (leak.place.line, leak.place.function) == (93, "run")


def test_what_another_stream_still_uses_is_a_family_of_its_own() -> None:
    run = Run(0)
    run.setup()
    last: list[int] = []

    def extra(step: int) -> None:
        side = [run.new(4 * MIB, MAIN, at(LEAK_LINE)) for _ in range(2)]
        run.free(side[0])  # the first is waited for, the second is not
        run.give_up(side[1])
        last.append(side[1])

    for step in range(14):
        run.step(extra, step)
    (leak,) = judged(run)
    assert (leak.verdict, leak.kind, leak.bytes_per_step, leak.steps) == (
        "likely",
        "stream",
        4 * MIB,
        13,
    )
    assert leak.place is not None
    assert leak.place.line == LEAK_LINE
    assert "wait_stream" in (leak.fix or "")


def test_what_another_stream_uses_for_a_while_is_none() -> None:
    run = Run(0)
    run.setup()
    waiting: list[int] = []

    def extra(_: int) -> None:
        address = run.new(16 * MIB, MAIN, at(LEAK_LINE))
        run.give_up(address)
        waiting.append(address)
        if len(waiting) > 3:
            done = waiting.pop(0)
            run.tell("free_completed", done, run.waiting.pop(done))

    for step in range(20):
        run.step(extra, step)
    assert judged(run) == []


def pinned(steps: int, *, kept: bool) -> RecordedLeakReport:
    """Batches that a loader pins, for a GPU whose steps are marked; ``kept`` ones are never
    given back.
    """
    host, gpu, marks = [event("segment_alloc", 1 << 30, 256 * MIB, time_us=0)], [], []
    gpu.append(event("segment_alloc", 1 << 40, 2 * MIB, time_us=0))
    for step in range(steps):
        frames = [{"filename": "/home/user/load.py", "line": 6, "name": "fetch"}]
        address = (1 << 30) + step * MIB
        host.append(event("alloc", address, MIB, time_us=10 * step + 2, frames=frames))
        if not kept:
            host += [event(action, address, MIB, time_us=10 * step + 4) for action in FREED]
        gpu += [event(action, 1 << 40, 512, time_us=10 * step + 3) for action in ("alloc", *FREED)]
        marks.append(
            {"stage": "END", "name": "vramlens.step", "device": 0, "time_us": 10 * step + 5}
        )
    value = snapshot(gpu, [segment(1 << 40, 2 * MIB, [block(1 << 40, 2 * MIB, 0, "inactive")])])
    value |= {"host_traces": [host], "host_segments": [], "external_annotations": marks}
    return leaks_of_trace(read(pickle.dumps(value)))


def test_pinned_host_memory_has_its_class() -> None:
    found = pinned(24, kept=True)
    (leak,) = growing(found)
    assert (leak.device, leak.kind, leak.verdict, leak.bytes_per_step) == (
        -1,
        "pinned",
        "possible",
        MIB,
    )
    assert "prefetch_factor" in (leak.fix or "")
    assert growing(pinned(140, kept=True))[0].verdict == "likely"
    assert [one.device for one in pinned(24, kept=False).devices] == [0]
    answer = leaks_document(found)
    assert headings(answer, 2)[0].startswith(
        "GROWTH, maybe a leak: 1.00 MiB per step of pinned host memory, 23.00 MiB so far in 23 "
    )
    judged = "Pinned host memory: 24 steps, found by vramlens.step. Checked the 23 steps before the last."
    assert any(text.startswith(judged) for text in sentences_of(answer))


@pytest.mark.parametrize("after", [0, 3, 20, 60, 200])
@pytest.mark.parametrize("again", [False, True])
def test_both_verbs_say_alike_whether_a_failure_was_the_end(after: int, again: bool) -> None:
    """A report, a handler, a last checkpoint ask for little; a program that goes on does a
    step's work.
    """
    value = pickle.loads(data_of("recordings/oom_leak"))
    events = value["device_traces"][0]
    failed, base = events[-1], 1 << 50
    for number in range(after):
        frames = [{"filename": "/home/user/report.py", "line": 3, "name": "report"}]
        if again and number == 0:
            frames = failed["frames"]
        address = base + 512 * number
        for action in ("alloc", "free_requested", "free_completed"):
            events.append(
                event(action, address, 512, time_us=failed["time_us"] + number + 1, frames=frames)
            )
    trace = read(pickle.dumps(value))
    (device,) = leaks_of_trace(trace).devices
    oom = explain_trace(trace).oom
    assert oom is not None
    assert oom.survived == (device.failed_step is None)
    assert oom.survived == (after >= 60 or (again and after > 0))  # a step asks for 80 blocks


def test_a_step_that_ends_after_a_failure_was_not_the_end() -> None:
    run = Run(0)
    run.setup()
    for step in range(6):
        run.step(lambda _: None, step)
    run.tell("oom", 0, 64 * MIB, (MAIN, at(3)), device_free=0)
    run.free(run.new(512, MAIN, at(4)))
    events, notes = len(run.events), len(run.notes)
    trace = run.trace()
    assert leaks_of_trace(trace).devices[0].failed_step == 6
    del run.events[events:]
    run.time += 1
    run.notes[notes:] = [
        {"stage": "END", "name": "vramlens.step", "device": 0, "time_us": run.time}
    ]
    assert leaks_of_trace(run.trace()).devices[0].failed_step is None


def test_a_cache_that_grew_is_said_to_be_none() -> None:
    (leak,) = [
        leak for leak in leaks_of_trace(opened("recordings/gpt_varlen")).leaks if leak.place is None
    ]
    assert "longer sequence" in leak.reason
    assert leak.bytes > 1 << 30


# Real recordings


@pytest.mark.parametrize("name", NO_LEAK)
def test_real_runs_that_do_not_leak(name: str) -> None:
    report = leaks_of_trace(opened(f"recordings/{name}"))
    assert {leak.verdict for leak in report.leaks} <= {"not a problem"}
    assert not report.found
    assert all(leak.reason and leak.fix is None for leak in report.leaks)


@pytest.mark.parametrize(
    "path", sorted((DATA / "captured").glob("*.vram")), ids=lambda path: path.stem
)
def test_captured_runs_do_not_leak(path: Path) -> None:
    assert growing(leaks_of_trace(load(path))) == []


@pytest.mark.parametrize(("rank", "lines"), [(0, []), (1, [46])])
def test_only_one_of_two_ranks_leaks(rank: int, lines: list[int]) -> None:
    report = leaks_of_trace(opened(f"ranks/leak_rank1/leak_rank1.rank{rank}"))
    assert [leak.place and leak.place.line for leak in report.sure] == lines


def test_work_buffers_that_the_first_product_asks_for_are_not_the_leaks() -> None:
    (leak,) = growing(leaks_of_trace(opened("recordings/leak_outputs")))
    assert leak.bytes == pytest.approx(leak.steps * leak.bytes_per_step, rel=1e-4)


def test_the_end_is_predicted_at_every_step_on_the_way_to_it() -> None:
    """recordings/oom_leak ran out of memory in step 9, under a limit of 2 GiB."""
    trace = opened("recordings/oom_leak")
    view = attribute(trace, trace.devices[0])
    for step in range(5, 9):
        moment = int(view.steps.starts[step])
        leaks = leaks_at(view, moment)
        found = predicted(view, leaks, Outside(limit_bytes=2 << 30), moment)
        assert found is not None
        assert found.low <= 9 - step <= found.high
        assert abs(found.steps - (9 - step)) <= 1
    assert leaks_of_trace(trace).devices[0].failed_step == 9


def test_a_limit_that_the_recording_has_is_used_and_one_that_it_lacks_is_not_guessed(
    tmp_path: Path,
) -> None:
    bare = leaks_of_trace(opened("recordings/leak_cycle"))
    assert bare.devices[0].prediction is None
    told = leaks_of_trace(opened("recordings/leak_cycle"), total_bytes=1 << 30)
    known = leaks_of_trace(load(vram(tmp_path / "run.vram", data_of("recordings/leak_cycle"))))
    assert told.devices[0].prediction is not None
    assert 0 < told.devices[0].prediction.high < 100
    assert known.devices[0].prediction is not None
    assert known.devices[0].prediction.limit_bytes == TOTAL
    assert known.devices[0].prediction.steps > 10_000


def test_too_few_steps_say_how_many_more() -> None:
    events, marks = [event("segment_alloc", 1 << 30, 2 * MIB, time_us=0)], []
    for step in range(3):
        events.append(event("alloc", (1 << 30) + 512 * step, 512, time_us=10 * step + 1))
        marks.append(
            {"stage": "END", "name": "vramlens.step", "device": 0, "time_us": 10 * step + 5}
        )
    report = leaks_of_trace(
        read(pickle.dumps(snapshot(events, []) | {"external_annotations": marks}))
    )
    assert (report.devices[0].steps, report.devices[0].needs_steps, report.leaks) == (3, 2, ())


def served(requests: int, *, keeps: bool) -> Trace:
    """A server without steps: requests of random kinds come at random, and some leave something
    behind.
    """
    run = Run(3)
    run.setup()
    for _ in range(requests):
        kinds = run.random.sample(range(100, 180), run.random.randrange(2, 6))
        temporary = [
            run.new(run.random.randrange(1, 900) * 512, MAIN, at(line, "serve")) for line in kinds
        ]
        for address in temporary:
            run.free(address)
        if keeps and run.random.random() < 0.5:
            run.new(MIB // 4, MAIN, at(LEAK_LINE, "serve"))
    return run.trace()


def test_without_steps_equal_parts_are_judged_and_nothing_is_sure() -> None:
    report = leaks_of_trace(served(400, keeps=True))
    assert report.devices[0].steps == 0
    (leak,) = growing(report)
    assert (leak.verdict, leak.bytes_per_step, leak.steps) == ("possible", 0, 0)
    assert leak.place is not None
    assert leak.place.line == LEAK_LINE
    assert not report.found
    assert growing(leaks_of_trace(served(400, keeps=False))) == []


@pytest.mark.parametrize(
    "name", ["recordings/oom_fragmented", "found/first_step_to_come", "found/oom_holes"]
)
def test_short_recordings_without_steps_say_that_they_cannot_tell(name: str) -> None:
    report = leaks_of_trace(opened(name))
    assert (report.devices[0].steps, growing(report)) == (0, [])


def test_every_device_is_judged() -> None:
    value = pickle.loads(data_of("recordings/leak_cycle"))
    other = pickle.loads(data_of("recordings/gpt"))
    value["device_traces"] = [other["device_traces"][0], value["device_traces"][0]]
    for part in value["segments"]:
        part["device"] = 1
    value["segments"] += other["segments"]
    value["external_annotations"] = []
    trace = read(pickle.dumps(value))
    report = leaks_of_trace(trace)
    assert [one.device for one in report.devices] == [1, 0]
    assert [leak.device for leak in report.sure] == [1]
    assert leaks_of_trace(trace, device=0).sure == ()
    with pytest.raises(UsageError, match="no device 7"):
        leaks_of_trace(trace, device=7)


def sampled(tmp_path: Path, free: Any, reserved: Any) -> list[RecordedLeak]:
    """What a run leaks whose recording is gpt's, and whose samples are these, by number."""
    columns = [
        "time_us",
        "step",
        "device",
        "allocated_bytes",
        "reserved_bytes",
        "free_bytes",
        "host_rss_bytes",
    ]
    rows = [[30_000_000 * i, 10 * i, 0, 4 << 30, reserved(i), free(i), 0] for i in range(100)]
    parts = {"samples": {"interval_s": 30.0, "columns": columns, "rows": rows}}
    path = vram(tmp_path / "run.vram", data_of("recordings/gpt"), **parts)
    return growing(leaks_of_trace(load(path)))


def test_growth_outside_pytorch_is_a_family_of_its_own(tmp_path: Path) -> None:
    (leak,) = sampled(tmp_path, lambda i: (60 << 30) - 20 * MIB * i, lambda i: 8 << 30)
    assert (leak.verdict, leak.kind, leak.place) == ("possible", "external", None)
    assert leak.bytes_per_step == pytest.approx(2 * MIB, rel=0.05)


def test_a_cache_that_takes_what_was_free_is_not_outside_pytorch(tmp_path: Path) -> None:
    assert (
        sampled(tmp_path, lambda i: (60 << 30) - 20 * MIB * i, lambda i: (8 << 30) + 20 * MIB * i)
        == []
    )
    # A library that sets itself up once: communicators, workspaces.
    assert (
        sampled(tmp_path, lambda i: (60 << 30) - (600 * MIB if i > 5 else 0), lambda i: 8 << 30)
        == []
    )


def with_ledger(
    tmp_path: Path, other: dict[str, int], confidence: str = "exact"
) -> RecordedLeakReport:
    """gpt, and what its process holds of two devices; it works on the first."""

    def device(index: int, parts: dict[str, int]) -> dict[str, Any]:
        rows = [
            {"kind": kind, "bytes": size, "confidence": confidence, "note": ""}
            for kind, size in parts.items()
        ]
        rows.append(
            {
                "kind": "free",
                "bytes": (8 << 30) - sum(parts.values()),
                "confidence": "exact",
                "note": "",
            }
        )
        return {"device": index, "total_bytes": 8 << 30, "rows": rows}

    first = {
        "pytorch_allocated": 4 << 30,
        "pytorch_cached": 1 << 30,
        "this_process_other": 500 * MIB,
    }
    ledger = {"end": {"devices": {"0": device(0, first), "1": device(1, other)}}}
    return leaks_of_trace(
        load(vram(tmp_path / "run.vram", data_of("recordings/gpt"), ledger=ledger))
    )


def test_a_context_on_a_device_that_nothing_uses_has_its_class(tmp_path: Path) -> None:
    found = with_ledger(tmp_path, {"this_process_other": 500 * MIB})
    (leak,) = growing(found)
    assert (leak.kind, leak.verdict, leak.device, leak.bytes) == (
        "context",
        "possible",
        1,
        500 * MIB,
    )
    assert "set_device" in (leak.fix or "")
    answer = leaks_document(found)
    # The first line is about leaks.
    assert headings(answer, 1)[0].startswith("Too few steps to tell")
    assert headings(answer, 2)[0] == (
        "KEPT FOR NOTHING (not growing): 500.00 MiB on device 1, which PyTorch does not use"
    )


@pytest.mark.parametrize(
    ("other", "confidence"),
    [
        ({"this_process_other": 500 * MIB, "pytorch_cached": 2 * MIB}, "exact"),
        ({"this_process_other": 3 * MIB}, "exact"),
        ({"other_processes": 500 * MIB}, "exact"),
        ({"this_process_other": 500 * MIB}, "inferred"),
    ],
)
def test_what_is_used_small_anothers_or_not_measured_is_no_stray_context(
    other: dict[str, int], confidence: str, tmp_path: Path
) -> None:
    assert growing(with_ledger(tmp_path, other, confidence)) == []


def test_the_module_and_the_library_that_asked_are_said() -> None:
    run = Run(0)
    run.setup()
    inner = ("/usr/lib/python3.11/site-packages/transformers/cache_utils.py", 77, "update")
    for step in range(14):
        run.step(
            lambda _: (
                run.new(MIB, MAIN, at(LEAK_LINE), inner, user_metadata="model.layers.3") and None
            ),
            step,
        )
    (leak,) = judged(run)
    assert any("transformers/cache_utils.py:77 in update" in said for said in leak.evidence)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 30), st.booleans(), st.booleans())
def test_no_order_of_events_breaks_it(seed: int, steps: int, early: bool, fails: bool) -> None:
    """Frees of what is older than the recording, addresses used again, pools and streams,
    failures, steps of any length.
    """
    run = Run(seed)
    draw = run.random
    held = list(range(BASE, BASE + 40 * MIB, MIB)) if early else []
    for _ in range(draw.randrange(1, 200)):
        choice = draw.random()
        if choice < 0.5 or not held:
            address = BASE + draw.randrange(40) * MIB
            stack = (MAIN, at(draw.randrange(1, 6))) if draw.random() < 0.8 else ()
            run.tell("alloc", address, draw.randrange(1, MIB), stack, stream=draw.choice([0, 0, 7]))
            held.append(address)
        elif choice < 0.9:
            address = held.pop(draw.randrange(len(held)))
            run.tell("free_requested", address, 512)
            if draw.random() < 0.9:
                run.tell("free_completed", address, 512)
        elif choice < 0.95:
            run.tell(
                "segment_alloc",
                (1 << 42) + draw.randrange(9) * MIB,
                MIB,
                stream=draw.choice([0, 7, 9]),
            )
        elif fails:
            run.tell("oom", 0, MIB, (MAIN, at(3)), device_free=0)
    for number in range(steps):
        when_us = draw.randrange(1, run.time + 2)
        run.notes.append(
            {"stage": "END", "name": "vramlens.step", "device": 0, "time_us": when_us + number % 2}
        )
    run.notes.sort(key=lambda note: note["time_us"])
    value = snapshot(run.events, []) | {"external_annotations": run.notes}
    for leak in leaks_of_trace(read(pickle.dumps(value))).leaks:
        assert leak.bytes >= 0
        assert (leak.fix is None) == (leak.verdict == "not a problem")


# Owners


def owners(trace: Trace, rows: Any, **changes: Any) -> dict[str, Any]:
    allocations = trace.devices[0].allocations
    return {
        "schema": "vramlens.owners/1", "time_us": None, "step": 11, "complete": True, "skipped": [],
        "owners": [
            {"name": "other", "kind": "dict", "file": None, "line": 0, "chain": [], "class": None},
            {"name": "Ctx.me", "kind": "Ctx", "file": "/x/train.py", "line": 152, "function": "leak_cycle",
             "chain": ["Ctx", ".me: Ctx", ".t: Tensor"], "class": "cycle", "verdict": "proven", "fix": None},
        ],
        "storages": {
            "columns": ["device", "address", "bytes", "owner", "born_step"],
            "rows": [[0, int(allocations.address[row]), int(allocations.requested_bytes[row]), 1, 0] for row in rows],
        },
        "leaks": [],
    } | changes  # fmt: skip


def kept_cycle() -> tuple[Trace, np.ndarray[Any, Any], int]:
    """leak_cycle, its leak's rows, and when they were all alive."""
    trace = opened("recordings/leak_cycle")
    (leak,) = growing(leaks_of_trace(trace))
    assert leak.rows is not None
    device = trace.devices[0]
    return trace, leak.rows, int(device.clock_us[int(device.allocations.born[leak.rows].max())])


def test_an_owner_is_joined_to_its_leak_by_address(tmp_path: Path) -> None:
    trace, rows, moment = kept_cycle()
    path = vram(
        tmp_path / "run.vram",
        data_of("recordings/leak_cycle"),
        owners=owners(trace, rows, time_us=moment),
    )
    report = leaks_of_trace(load(path))
    (leak,) = growing(report)
    assert report.has_owners
    assert (leak.verdict, leak.kind) == ("proven", "cycle")
    assert leak.owner is not None
    assert (leak.owner.name, leak.owner.file, leak.owner.line) == ("Ctx.me", "/x/train.py", 152)
    assert "/x/train.py:152" in (leak.fix or "")
    assert "weakref" in (leak.fix or "")


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("proven", "proven"),
        ("likely", "likely"),
        ("possible", "likely"),
        (None, "likely"),
        (7, "likely"),
    ],
)
def test_what_the_process_judged_makes_it_no_less_certain(
    said: Any, verdict: str, tmp_path: Path
) -> None:
    trace, rows, moment = kept_cycle()
    table = owners(trace, rows, time_us=moment)
    table["owners"][1]["verdict"] = said
    (leak,) = growing(
        leaks_of_trace(
            load(vram(tmp_path / "run.vram", data_of("recordings/leak_cycle"), owners=table))
        )
    )
    assert leak.verdict == verdict
    assert leak.owner is not None


def test_an_owner_that_is_bounded_settles_it(tmp_path: Path) -> None:
    trace, rows, moment = kept_cycle()
    table = owners(trace, rows, time_us=moment)
    table["owners"][1] |= {
        "verdict": "not a problem",
        "name": "recent",
        "kind": "deque of at most 64",
    }
    report = leaks_of_trace(
        load(vram(tmp_path / "run.vram", data_of("recordings/leak_cycle"), owners=table))
    )
    assert growing(report) == []
    assert any("recent, a deque of at most 64, keeps it" in leak.reason for leak in report.leaks)


def test_an_owner_of_something_else_is_not_joined(tmp_path: Path) -> None:
    trace, rows, moment = kept_cycle()
    others = np.setdiff1d(np.arange(20), rows)
    for table in (owners(trace, others, time_us=moment), owners(trace, rows, time_us=1)):
        path = vram(tmp_path / "run.vram", data_of("recordings/leak_cycle"), owners=table)
        (leak,) = growing(leaks_of_trace(load(path)))
        assert (leak.verdict, leak.kind, leak.owner) == ("likely", None, None)


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["time_us", "complete", "skipped", "owners", "storages"]), JUNK
    ),
    JUNK,
    JUNK,
)
def test_hostile_owners_never_matter(
    tmp_path_factory: pytest.TempPathFactory, junk: dict[str, Any], row: Any, entry: Any
) -> None:
    table = {
        "owners": [entry],
        "storages": {"columns": ["device", "address", "bytes", "owner"], "rows": [row]},
    } | junk
    path = tmp_path_factory.mktemp("hostile") / "run.vram"
    events = [event("segment_alloc", 1 << 30, 2 * MIB), event("alloc", 1 << 30, 512)]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("meta.json", json.dumps(META))
        archive.writestr("owners.json", json.dumps(table))
        archive.writestr("snapshot.pickle", pickle.dumps(snapshot(events, [])))
    trace = load(path)
    assert trace.owners is not None
    assert (trace.owners.owner < len(trace.owners.owners)).all()
    assert growing(leaks_of_trace(trace)) == []


# Rates and rhythms


@given(st.lists(st.integers(1, 1 << 40), min_size=3, max_size=60))
def test_a_rate_lies_within_its_range_and_a_steady_one_is_exact(sizes: list[int]) -> None:
    rate = rate_of(np.array(sizes, np.int64))
    assert min(sizes) * 0.999 <= rate.low <= rate.high <= max(sizes) * 1.001
    assert min(sizes) * 0.999 <= rate.bytes <= max(sizes) * 1.001
    steady = rate_of(np.full(len(sizes), sizes[0], np.int64))
    assert steady.bytes == pytest.approx(sizes[0])
    assert steady.low == pytest.approx(steady.high)


@given(st.integers(2, 12), st.integers(3, 30))
def test_a_rate_of_every_nth_step_counts_whole_periods(gap: int, times: int) -> None:
    by_step = np.zeros(gap * times, np.int64)
    by_step[::gap] = 1000 * gap
    assert rate_of(by_step).bytes == pytest.approx(1000)


@given(st.integers(1, 40), st.integers(4, 200))
def test_a_ring_that_has_turned_never_grows(length: int, steps: int) -> None:
    last = length + steps
    left = np.zeros(last, np.int64)
    left[-length:] = 1
    assert isinstance(rhythm_of(left, length), str)


@given(st.integers(4, 300), st.integers(0, 100))
def test_what_every_step_leaves_grows_from_where_it_began(steps: int, before: int) -> None:
    left = np.concatenate((np.zeros(before, np.int64), np.ones(steps, np.int64)))
    rhythm = rhythm_of(left, 0)
    assert isinstance(rhythm, Rhythm)
    assert (rhythm.first, rhythm.steps, rhythm.steady) == (before, steps, True)


@given(st.integers(3, 12), st.integers(2, 20), st.data())
def test_what_every_few_steps_leave_is_steady_wherever_the_recording_ends(
    apart: int, times: int, data: st.DataObject
) -> None:
    first, after = data.draw(st.integers(0, apart)), data.draw(st.integers(1, apart))
    left = np.zeros(first + apart * (times - 1) + after, np.int64)
    left[first::apart] = 4
    rhythm = rhythm_of(left, 0)
    assert isinstance(rhythm, Rhythm)
    assert (rhythm.steps, rhythm.steady, rhythm.apart) == (times, True, apart)


def test_what_comes_more_and_more_rarely_is_slowing() -> None:
    left = np.zeros(70, np.int64)
    left[[0, 2, 4, 6, 8, 10, 14, 20, 30, 50]] = 1
    assert rhythm_of(left, 0) == "slowing"


@given(st.lists(st.booleans(), min_size=4, max_size=120), st.integers(0, 20))
def test_a_rhythm_counts_no_more_than_there_is(hits: list[bool], longest: int) -> None:
    left = np.array(hits, np.int64)
    rhythm = rhythm_of(left, longest)
    if isinstance(rhythm, Rhythm):
        assert 2 <= rhythm.steps <= sum(hits)
        assert rhythm.outlived <= rhythm.steps
        assert hits[rhythm.first]


def test_predictions_in_words() -> None:
    rate = rate_of(np.array([MIB] * 20))
    known = prediction_of([rate], 1000 * MIB, 1100 * MIB, 1200 * MIB)
    assert known is not None
    assert (known.low, known.steps, known.high) == (149, 175, 201)
    assert time_to_full_text(known) == "out of memory in about 175 steps (149 to 201)"
    assert (
        time_to_full_text(replace(known, low=0, steps=0, high=1))
        == "out of memory within the next step or two"
    )
    assert (
        time_to_full_text(replace(known, low=2_345_678, steps=3_000_000))
        == "room for more than 2,340,000 steps"
    )
    assert prediction_of([], 1, 1, 2) is None
