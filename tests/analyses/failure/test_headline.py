"""The headline of real failures: what was asked for, what was free, why it failed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.recordings import DATA
from vramlens import load
from vramlens.analyses.failure.headline import HeadlineFacts, headline_of
from vramlens.analyses.failure.largest_use import largest_use_of
from vramlens.analyses.leaks.recorded_leak import are_mostly_sure
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.report.explain.json import to_json
from vramlens.units import format_size

OPENING = "Out of memory: tried to allocate "
HEADLINES = {
    "failures/gpt.cap90.vram": (
        "128.00 MiB. PyTorch's cache had 200.00 MiB free, in blocks of at most 88.00 MiB."
        " This step needs 2.04 GiB to finish with these settings; the limit is 1.85 GiB."
    ),
    "failures/amp.cap97.vram": (
        "128.00 MiB. PyTorch's cache had 112.00 MiB free, in blocks of at most 104.00 MiB."
        " Without gaps, this step needs 1.39 GiB at its peak, which would fit in 1.48 GiB."
    ),
    "failures/gpt_varlen.cap50.vram": (
        "301.12 MiB. PyTorch's cache had 195.89 MiB free, in blocks of at most 16.00 MiB."
        " This step needs 4.09 GiB to finish (estimated from step 4, at 1.33x its batch or inputs);"
        " the limit is 3.38 GiB."
    ),
    "captured/oom_really_full.vram": (
        "256.00 MiB. The GPU had 246.19 MiB free, and PyTorch's cache had 14.81 MiB free, in"
        " blocks of at most 9.00 MiB. The GPU is 9.81 MiB short. 77.49 GiB of the 78.25 GiB in use is one tensor"
        " (programs.py:130 in oom_really_full)."
    ),
}


@pytest.mark.parametrize(
    ("name", "peak"),
    [("nmt_gru_beam.cap70", "step 0's peak (13%)"), ("hand_lora.cap75", "the peak (11%)")],
)
def test_a_share_of_the_peak_names_its_step_where_a_later_one_failed(name: str, peak: str) -> None:
    findings = load(DATA / f"failures/{name}.vram").explain().findings
    titles = [row.title for row in findings if row.id == "operator_buffers"]
    assert f" of {peak} is one buffer" in titles[0]


def test_what_fits_without_gaps_and_what_does_not_with_them_are_told_apart() -> None:
    text = " ".join(str(load(DATA / "failures/amp.cap97.vram").explain()).split())
    assert "Without gaps, this step needs 1.39 GiB at its peak" in text
    assert "; gaps included, this step needs 1.51 GiB, at most 1.55 GiB" in text


@pytest.mark.parametrize("name", HEADLINES)
def test_it_says_what_was_asked_what_was_free_and_why(name: str) -> None:
    oom = load(DATA / name).explain().oom
    assert oom is not None
    assert oom.headline == OPENING + HEADLINES[name]


def test_the_largest_use_is_at_least_half_and_is_also_data() -> None:
    explanation = load(DATA / "failures/vaegan.cap85.vram").explain()
    assert explanation.oom is not None
    use, line = explanation.oom.largest_use, explanation.heap.by_line[0]
    assert (use.place, use.bytes, use.allocations) == (line.place, line.bytes, line.allocations)
    assert "2.83 GiB of the 4.23 GiB in use is from one line, in 102" in explanation.oom.headline
    assert to_json(explanation)["oom"]["largest_use"] == {
        "file": "/home/user/train/vaegan.py",
        "line": 47,
        "function": "forward",
        "bytes": line.bytes,
        "allocations": 102,
        "of_bytes": explanation.heap.requested_bytes,
    }


def test_less_than_half_is_not_the_largest_use() -> None:
    explanation = load(DATA / "failures/gpt.cap90.vram").explain()
    assert explanation.oom is not None
    assert 2 * explanation.heap.by_line[0].bytes < explanation.heap.requested_bytes
    assert to_json(explanation)["oom"]["largest_use"] is None


def test_a_tensor_without_a_stack_is_named_without_a_line() -> None:
    trace = load(DATA / "captured/oom_really_full.vram")
    scene = Scene(trace.attribution())
    use = largest_use_of(scene.view, scene.advice_heap)
    facts = HeadlineFacts(scene.failure, "device", None, largest_use=replace(use, place=None))
    assert headline_of(facts).endswith(
        " 77.49 GiB of the 78.25 GiB in use is one tensor, whose line is unknown."
    )


@pytest.mark.parametrize(
    "name", ["found/oom_holes.pickle.xz", "recordings/oom_fragmented.pickle.xz"]
)
def test_no_finding_says_the_headline_again(name: str) -> None:
    explanation = load(DATA / name).explain()
    assert explanation.oom is not None
    (finding,) = [row for row in explanation.findings if row.id == "fragmented_request"]
    assert finding.title.lower() not in explanation.oom.headline.lower()
    assert explanation.oom.headline not in str(finding)
    assert "split up by blocks in use" in finding.title


def test_a_leak_is_named_with_its_line() -> None:
    oom = load(DATA / "recordings/oom_leak.pickle.xz").explain().oom
    assert oom is not None
    assert oom.headline.startswith(OPENING)
    assert ". Earlier steps leaked 1.73 GiB" in oom.headline
    assert " per step (" in oom.headline


def test_what_may_be_a_store_that_fills_is_no_leak_yet() -> None:
    leak = load(DATA / "recordings/oom_leak.pickle.xz").explain().leaks[0]
    store = replace(leak, verdict=Verdict.POSSIBLE, bytes=2 * leak.bytes)
    assert are_mostly_sure([leak])
    assert are_mostly_sure([leak, replace(store, bytes=leak.bytes)])
    assert not are_mostly_sure([leak, store])
    scene = Scene(load(DATA / "recordings/oom_leak.pickle.xz").attribution())
    small = replace(leak, bytes=1024, place=replace(leak.place, line=7))
    facts = HeadlineFacts(scene.failure, "process_limit", "leak", leaks=[small, store])
    left_bytes = store.bytes + small.bytes
    assert f"Earlier steps left {format_size(left_bytes)} behind, " in headline_of(facts)
    assert f"({store.place})" in headline_of(facts)
