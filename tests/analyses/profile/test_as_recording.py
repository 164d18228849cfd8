"""A profiler trace as a recording: the same memory, and the questions to recordings asked of it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

import vramlens
from support.kineto import MIB, Kineto, training
from support.page_data import PageData, data_in
from vramlens.analyses.attribution.attribution import attribute
from vramlens.analyses.profile.explained_profile import explain_profile
from vramlens.analyses.profile.remains import remains_of
from vramlens.cli.main import main
from vramlens.trace import Action

DATA = Path(__file__).parents[2] / "data" / "profiler"
TRACES = {name: DATA / f"{name}.json.gz" for name in ("train", "gpt_gpu")}


@pytest.fixture(scope="module", params=TRACES)
def both(request):
    """A recording made from a real trace, and the profile of the same."""
    recording = vramlens.load(TRACES[request.param])
    return recording, explain_profile(recording.profile)


@pytest.fixture
def made(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(training().text())
    return str(path)


def test_the_peak_is_that_of_the_profile(both):
    recording, profile = both
    heap = recording.peak()
    assert recording.explain().peak.requested_bytes == profile.memory.allocated_bytes
    device = recording.devices[recording.main_device]
    assert int(device.requested_curve.max()) == profile.memory.allocated_bytes
    for name, row in heap.by_category.items():
        if name != "other":
            assert row.bytes == profile.memory.by_group[name]


def test_lines_are_the_users_functions_as_the_profile_has_them(both):
    recording, profile = both
    lines = {str(row.place): row.bytes for row in recording.peak().by_line}
    told: dict[str, int] = {}
    for holder in profile.memory.at_peak:
        if holder.place is not None:
            told[str(holder.place)] = told.get(str(holder.place), 0) + holder.bytes
    assert lines == told


def test_steps_are_the_profilers(both):
    recording, profile = both
    steps = recording.explain().steps
    assert steps.source == "profiler steps"
    assert steps.count == len(profile.steps)


def test_a_stack_is_operators_then_functions(both):
    recording, _ = both
    device = recording.devices[recording.main_device]
    births = np.flatnonzero(device.events.action == Action.ALLOC)
    stacks = [recording.stacks.of(int(stack)) for stack in device.events.stack[births]]
    assert any(
        frames[0].function.startswith("aten::") and any(f.file.endswith(".py") for f in frames)
        for frames in stacks
        if frames
    )


def test_what_was_there_before_the_trace_counts():
    trace = Kineto()
    trace.op("aten::empty", 0, 10)
    trace.memory(1, 4 * MIB, 0x1000, allocated=10 * MIB, reserved=20 * MIB)
    trace.memory(2, -2 * MIB, 0x9000, allocated=8 * MIB, reserved=20 * MIB)
    trace.memory(3, 1 * MIB, 0x2000, allocated=9 * MIB, reserved=20 * MIB)
    from vramlens.analyses.profile.as_recording import recording_of

    device = recording_of(trace.read()).devices[0]
    assert device.requested_curve.tolist() == [10 * MIB, 8 * MIB, 9 * MIB]
    assert device.requested.base_bytes == 6 * MIB
    assert device.reserved.peak_bytes == 20 * MIB


def test_each_step_of_the_leak_leaves_64_kib(both):
    recording, profile = both
    if profile.use is not None:
        return
    remains = remains_of(attribute(recording, recording.devices[0]))
    assert [row.largest_bytes for row in remains] == [64 * 1024] * 3
    assert {row.largest for row in remains} == {"aten::mul, train.py:38 in keep"}


def test_the_page_shows_steps_kernels_and_the_profiles_verdict(tmp_path):
    page = vramlens.view(TRACES["gpt_gpu"], sources=None)
    data = PageData(data_in(page.html))
    (track,) = data.header["tracks"]
    assert track["verdict"]["headline"].startswith("GPU 0 is busy for 51%")
    bands, texts = track["bands"], track["texts"]
    names = [texts[number] for number in data.column(bands["name"])]
    profile = vramlens.load(TRACES["gpt_gpu"]).profile
    kernels = int((profile.spans.device == 0).sum())
    assert sum(name.startswith("ProfilerStep#") for name in names) == 2
    assert bands["n"] >= kernels + 2
    begins = data.column(bands["begin"])
    assert begins == sorted(begins)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["leaks", "TRACE"], "Stays after each profiler step on device 0"),
        (["leaks", "TRACE", "--markdown"], "Stays after each profiler step"),
        (["diff", "TRACE", "OTHER"], "GPU 0 busy: 26% of the time before, 51% of the time after"),
        (["ranks", "TRACE", "OTHER"], "GPU busy, the least first"),
    ],
)
def test_verbs_take_a_trace(made, arguments, words, capsys):
    names = {"TRACE": made, "OTHER": str(TRACES["gpt_gpu"])}
    assert main([names.get(word, word) for word in arguments]) == 0
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["replay", "tune"])
def test_what_a_trace_cannot_answer_is_one_line(made, verb, capsys):
    assert main([verb, made]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "is a profiler trace, which has no segments to replay" in line


def test_a_budget_takes_no_retries_from_a_trace(made, tmp_path, capsys):
    budget = tmp_path / "vram.toml"
    assert main(["check", made, "--update", "--budget", str(budget)]) == 0
    assert "alloc_retries: left out" in capsys.readouterr().out


def test_a_trace_without_memory_is_told(tmp_path, capsys):
    trace = Kineto()
    trace.op("aten::mm", 0, 10)
    path = tmp_path / "no memory.json"
    path.write_text(trace.text())
    assert main(["leaks", str(path)]) == 3
    assert "profile_memory=True) records them" in capsys.readouterr().err


def test_export_takes_a_trace(made, tmp_path):
    target = vramlens.export(made, "csv", tmp_path / "out.csv")
    assert Path(target).read_text().count("\n") > 3


def test_the_rank_that_differs_is_told(tmp_path, capsys):
    text = gzip.decompress(TRACES["gpt_gpu"].read_bytes()).decode()
    slower = json.loads(text)
    for event in slower["traceEvents"]:
        if event.get("cat") == "kernel":
            event["dur"] *= 0.3
    slower["distributedInfo"] = {"backend": "nccl", "rank": 1, "world_size": 2}
    ordered = {"distributedInfo": slower.pop("distributedInfo"), **slower}
    for rank, content in enumerate((text, json.dumps(ordered))):
        folder = tmp_path / ("rank00000" if rank == 0 else "other")
        folder.mkdir()
        (folder / "host_1.pt.trace.json").write_text(content)
    assert main(["ranks", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "GPU busy, the least first: rank 1 " in out
    assert "rank 0: aten::mm takes longer by itself" in out


def test_several_files_are_never_sent_to_what_refuses_them(made, tmp_path, capsys):
    log = tmp_path / "train.log"
    log.write_text("nothing\n")
    assert main(["explain", made, made]) == 2
    assert f"vramlens diff {made} {made}" in capsys.readouterr().err
    assert main(["explain", str(log), str(log)]) == 2
    assert f"one at a time: vramlens explain {log}" in capsys.readouterr().err
    recording = str(DATA.parent / "recordings" / "gpt.pickle.xz")
    assert main(["explain", recording, made]) == 2
    assert f"vramlens view {recording} {made}" in capsys.readouterr().err
