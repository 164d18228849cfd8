"""What a profiler trace shows that costs time: pageable copies, copies made twice, slower steps."""

from __future__ import annotations

import pytest

from support.kineto import MIB, Kineto
from vramlens.analyses.profile.explained_profile import explain_profile


def copies(names, *, shapes="[[64, 3]]", steps=3):
    """A trace of some steps that each copy to the GPU, as often as there are names."""
    trace = Kineto()
    trace.python("train.py(5): load", 0, steps * 1000)
    for step in range(steps):
        start = step * 1000
        trace.region(f"ProfilerStep#{step}", start, 990)
        for number, name in enumerate(names):
            begin = start + 100 * number + 10
            operator = trace.op("aten::copy_", begin, 60)
            operator["args"]["Input Dims"] = shapes if isinstance(shapes, str) else shapes[number]
            call, work = trace.launch(begin + 5, 10, name, begin + 20, 40)
            call["name"] = "cudaMemcpyAsync"
            work["cat"] = "gpu_memcpy"
    return explain_profile(trace.read())


def found(profile, name):
    return [finding for finding in profile.findings if finding.id == name]


def test_copies_from_pageable_memory_are_told_with_their_line():
    (finding,) = found(copies(["Memcpy HtoD (Pageable -> Device)"]), "profile_pageable_copies")
    assert finding.title.startswith("3 copies to the GPU from pageable memory take 120 us, 4%")
    assert finding.place.file == "train.py"
    assert "pin_memory=True" in finding.fix


def test_pinned_copies_are_fine():
    assert not found(copies(["Memcpy HtoD (Pinned -> Device)"]), "profile_pageable_copies")


def test_one_shape_copied_twice_a_step():
    twice = ["Memcpy HtoD (Pinned -> Device)"] * 2
    (finding,) = found(copies(twice), "profile_repeated_copies")
    assert finding.verdict == "possible"
    assert finding.place.function == "load"
    apart = copies(twice, shapes=["[[64, 3]]", "[[64]]"])
    assert not found(apart, "profile_repeated_copies")
    assert not found(copies(twice, steps=1), "profile_repeated_copies")


def stepped(durations, peaks):
    """A trace of steps that take so many microseconds and keep so many MiB."""
    trace = Kineto()
    begin = 0
    for step, (duration, peak) in enumerate(zip(durations, peaks, strict=True)):
        trace.region(f"ProfilerStep#{step}", begin, duration)
        trace.op("aten::mm", begin + 1, duration - 2)
        trace.memory(begin + 5, MIB, 0x1000 * (step + 1), allocated=peak * MIB, reserved=0)
        begin += duration + 1
    return explain_profile(trace.read())


def test_steps_that_slow_down_as_memory_rises():
    profile = stepped([100, 110, 120, 130, 150, 170, 190, 210, 240], range(1, 10))
    (finding,) = found(profile, "profile_slower")
    assert finding.verdict == "likely"
    assert finding.bytes == 8 * MIB
    assert "110 us at the beginning, 210 us at the end" in finding.title


@pytest.mark.parametrize(
    ("durations", "peaks"),
    [
        ([100] * 9, range(1, 10)),
        ([100, 110, 120, 130, 150, 170, 190, 210, 240], [5] * 9),
        ([100, 240, 110, 230, 120, 220, 130, 210, 240], range(1, 10)),
        ([100, 150, 200, 250], range(1, 5)),
    ],
)
def test_what_does_not_rise_together_is_no_finding(durations, peaks):
    assert not found(stepped(durations, peaks), "profile_slower")
