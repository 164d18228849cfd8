"""Budgets held against real runs, and against copies with a planted change."""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from support.copies import again, forward_lines, planted, shuffled, snapshot_of
from support.recordings import DATA, data_of
from vramlens import api
from vramlens.analyses.budget.budget import check_run
from vramlens.analyses.budget.budget_file import read_budget
from vramlens.analyses.budget.budget_update import update
from vramlens.analyses.budget.job_check import check_of_job
from vramlens.analyses.compare.compared_run import run_of
from vramlens.analyses.leaks.recorded_leaks import leaks_of_trace
from vramlens.read.snapshot import read_snapshot
from vramlens.trace.meta import DeviceMeta, Meta

RESNET = "recordings/resnet50"


def run(data: bytes):
    return run_of(read_snapshot(io.BytesIO(data), "run.pickle"))


@cache
def shared(name):
    return run(data_of(name))


@cache
def captured(name):
    return run_of(api.load(DATA / "captured" / f"{name}.vram"))


def budget(text: str):
    return read_budget(f"[budget]\n{text}\n".encode(), "vram.toml")


def check(name: str, text: str, baseline=None):
    return check_run(shared(name), budget(text), baseline)


def test_limits_hold_up_to_their_own_value():
    peak = shared(RESNET).explanation.peak
    for counter in ("allocated", "requested", "active", "reserved"):
        size = getattr(peak, f"{counter}_bytes")
        assert check(RESNET, f"peak_{counter} = {size}").passed
        broken = check(RESNET, f"peak_{counter} = {size - 1}")
        assert not broken.passed
        assert broken.results[0].value == size
        assert broken.findings[0].bytes == 1
        assert check(RESNET, f"tolerance = 0.01\npeak_{counter} = {size * 100 // 101 + 1}").passed


def test_what_broke_it_is_named():
    (finding,) = check(RESNET, 'peak_allocated = "1 GiB"').findings
    assert finding.place.line == 71
    assert finding.evidence[0] == "2.74 GiB at the peak: train/workloads.py:71 in resnet50"
    assert "peak_allocated is 2.87 GiB, 1.87 GiB over its limit of 1.00 GiB" in finding.title


def test_growth_breaks_its_limit_with_its_line_and_fix():
    result = check("recordings/leak_outputs", 'growth_per_step = "1 MiB"')
    assert not result.passed
    (finding,) = result.findings
    assert finding.place.line == 146
    assert finding.fix
    assert check("recordings/leak_none_warmup", "growth_per_step = 0").passed


@pytest.mark.parametrize("name", ["leak_cycle", "leak_outputs", "leak_losses", "leak_hook"])
def test_growth_is_told_by_as_many_steps_as_leaks_needs(name):
    """A leaking program passes with no number of its steps."""
    value = snapshot_of(f"recordings/{name}")
    events = value["device_traces"][0]
    starts = run(pickle.dumps(value)).view.steps.starts.tolist()
    for steps in (3, 4, 5, 6):
        cut = pickle.dumps(value | {"device_traces": [events[: starts[steps]]], "segments": []})
        short = run(cut)
        (result,) = check_run(short, budget("growth_per_step = 0")).results
        assert short.explanation.steps.count == steps
        assert not result.passed, f"{steps} steps"
        (report,) = leaks_of_trace(read_snapshot(io.BytesIO(cut), "run.pickle")).devices
        assert (report.needs_steps is not None) == ("would show growth" in result.why)
        assert (
            "growth_per_step" in [scope for scope, _why in update(short, None).untold]
            or result.value
        )


def test_few_steps_that_hold_say_so():
    value = snapshot_of("recordings/leak_none_warmup")
    events = value["device_traces"][0]
    starts = run(pickle.dumps(value)).view.steps.starts.tolist()
    short = run(pickle.dumps(value | {"device_traces": [events[: starts[6]]], "segments": []}))
    (result,) = check_run(short, budget("growth_per_step = 0")).results
    assert result.passed
    assert result.why == "6 steps recorded; more than 10 make it certain"


def wrapped_run(*, high_water: int | None):
    """The second half of a recording, as a wrapped ring leaves it, with the allocator's own
    counter.
    """
    whole = shared("recordings/gpt")
    value = snapshot_of("recordings/gpt")
    events = value["device_traces"][0]
    late = read_snapshot(
        io.BytesIO(pickle.dumps(value | {"device_traces": [events[len(events) // 2 :]]})),
        "run.pickle",
    )
    stats = {} if high_water is None else {"requested_bytes.all.peak": high_water}
    facts = DeviceMeta(stats=stats)
    meta = Meta(devices={0: facts}, wrapped={0: True})
    return whole.requested_bytes, run_of(replace(late, meta=meta))


def test_a_peak_that_is_a_lower_bound_does_not_pass_and_is_no_limit():
    true_peak, late = wrapped_run(high_water=None)
    (result,) = check_run(late, budget('peak_requested = "80 GiB"')).results
    assert (result.value, result.passed) == (None, None)
    assert "is a lower bound" in result.why
    assert (
        check_run(late, budget('peak_requested = "1 MiB"')).results[0].passed is False
    )  # whatever came before
    changes = update(late, None).changes
    assert not [scope for scope, *_ in changes if scope.startswith("peak_")]
    _, counted = wrapped_run(high_water=true_peak)
    (result,) = check_run(counted, budget(f"peak_requested = {true_peak - 1}")).results
    assert (result.value, result.passed) == (
        true_peak,
        False,
    )  # the allocator counted what the ring lost


@pytest.mark.parametrize(
    "limit",
    ['[budget.phase.forward]\npeak = "80 GiB"', "fragmentation = 0.99", "out_of_memory = 0"],
)
def test_what_a_wrapped_ring_lost_may_break_any_limit(limit):
    _, late = wrapped_run(high_water=None)
    assert check_run(late, budget(limit)).results[0].passed is None


def test_what_cannot_be_told_does_not_pass():
    found = check(RESNET, "growth_per_step = 0")  # three steps
    assert not found.passed
    assert (found.results[0].value, found.results[0].passed) == (None, None)
    assert "3 steps recorded" in found.findings[0].title
    assert found.findings[0].id == "cannot_tell"


def test_each_failed_request_is_one_retry_at_least():
    broken = check("recordings/oom_fragmented", "alloc_retries = 0").results[0]
    assert (broken.value, broken.passed) == (1, False)
    untold = check("recordings/oom_fragmented", "alloc_retries = 2").results[0]
    assert (untold.value, untold.passed) == (None, None)
    assert untold.why.startswith("1 is a lower bound: a PyTorch snapshot does not count retries")


def test_retries_are_known_where_nothing_was_ever_given_back():
    assert check(RESNET, "alloc_retries = 0").results[0].value == 0


def test_retries_as_the_allocator_counted_them():
    found = check_run(captured("oom_forward"), budget("alloc_retries = 0"))
    stats = captured("oom_forward").view.trace.meta.devices[0].stats
    assert found.results[0].value == stats["num_alloc_retries"]


def test_failures_and_fragmentation():
    found = check("recordings/oom_fragmented", "out_of_memory = 0\nfragmentation = 0.01")
    assert [result.passed for result in found.results] == [False, False]
    holes = shared("recordings/oom_fragmented").explanation.fragmentation
    assert found.results[1].value == holes.free_bytes / holes.reserved_bytes
    assert found.findings[1].place is not None


def test_a_module_holds_what_is_inside_it():
    marked = captured("gpt")
    heap = marked.explanation.peak.heap.by_module
    inside = sum(
        size
        for path, size in heap.items()
        if path == "model.blocks" or path.startswith("model.blocks.")
    )
    whole = check_run(marked, budget('module."model.blocks".peak = 0')).results[0].value
    assert whole >= inside > 0
    each = check_run(marked, budget('module."model.blocks.*".peak = 0')).results[0].value
    assert each <= whole
    one = check_run(marked, budget('module."model.blocks.1".peak = 0'))
    assert 0 < one.results[0].value < whole
    assert one.findings[0].place is not None
    # not by the beginning of a name: model.blocks.1 is not model.blocks.10, and model.b is nothing
    assert check_run(marked, budget('module."model.block".peak = 0')).results[0].value is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('module."model.blcks".peak = 0', "no module 'model.blcks'; did you mean 'model.blocks"),
        ('line."programs.py:9999".peak = 0', "no line 'programs.py:9999'"),
        ("category.activation.peak = 0", "no category 'activation'; there are: "),
        ("phase.lunch.peak = 0", "no phase 'lunch'; there are: "),
    ],
)
def test_a_part_that_does_not_exist_does_not_pass(text, said):
    found = check_run(captured("gpt"), budget(text))
    assert not found.passed
    assert said in found.results[0].why


def test_without_modules_in_the_recording_it_says_how_to_get_them():
    assert "contains no module names" in check(RESNET, 'module."model".peak = 0').results[0].why


@pytest.mark.parametrize("name", ["train/workloads.py:71", "workloads.py:resnet50", "workloads.py"])
def test_lines_by_number_function_or_file(name):
    found = check(RESNET, f'line."{name}".peak = 0')
    device, view = shared(RESNET).view.device, shared(RESNET).view
    frames = [
        f
        for f in np.unique(view.phases.frame)
        if f >= 0 and (":71" not in name or view.place(int(f)).line == 71)
    ]
    mine = np.isin(view.phases.frame, frames)
    rows = np.flatnonzero(mine)
    assert found.results[0].value == device.allocations.fullest(rows)[1]


def test_categories_and_phases():
    found = check(RESNET, "category.activations.peak = 0\nphase.evaluation.peak = 0")
    assert found.results[0].value > 2 << 30
    assert found.results[1].value == 0
    assert found.results[1].passed


def copied(made):
    return run(pickle.dumps(made))


@cache
def own_budget():
    return read_budget(update(shared(RESNET), None).text.encode(), "vram.toml")


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_planted_change_breaks_the_budget_of_the_run_and_nothing_else(number):
    line = list(forward_lines(snapshot_of(RESNET)))[number]
    second = copied(planted(snapshot_of(RESNET), line))
    found = check_run(second, own_budget())
    assert not found.passed
    (finding,) = found.findings
    assert finding.place.line == 71
    (evidence,) = finding.evidence
    assert "since the budget was updated: train/workloads.py:71 in resnet50" in evidence
    told = check_run(second, own_budget(), shared(RESNET)).findings
    assert len(told) == 1
    assert (
        told[0]
        .evidence[0]
        .endswith(f"allocated at {line[0]}:{line[1]} in {told[0].evidence[0].split(' in ')[-1]}")
    )


def test_the_same_run_again_keeps_the_budget():
    for made in (
        snapshot_of(RESNET),
        again(snapshot_of(RESNET), lambda event: event["size"]),
        shuffled(snapshot_of(RESNET), 3),
    ):
        found = check_run(copied(made), own_budget())
        assert found.passed
        assert found.findings == ()


def test_an_update_says_what_changed_and_what_cannot_be_told():
    first = update(shared(RESNET), None)
    assert [change[0] for change in first.changes] == [
        "peak_allocated",
        "peak_requested",
        "alloc_retries",
    ]
    assert [scope for scope, _why in first.untold] == ["growth_per_step"]
    old = budget('peak_requested = "20 GiB"  # agreed\ngrowth_per_step = "1 MiB"')
    second = update(shared(RESNET), old)
    assert second.changes == (("peak_requested", "20.00 GiB", "2.85 GiB"),)
    assert "# agreed" in second.text
    assert 'growth_per_step = "1 MiB"' in second.text
    assert check_run(
        shared("recordings/leak_none_warmup"), read_budget(second.text.encode(), "x")
    ).passed


def test_growth_that_may_be_there_is_not_zero():
    value = snapshot_of("recordings/leak_cycle")
    events = value["device_traces"][0]
    short = run(
        pickle.dumps(value | {"device_traces": [events[: len(events) // 2]], "segments": []})
    )
    (result,) = check_run(short, budget("growth_per_step = 0")).results
    assert (result.value, result.passed) == (None, None)
    assert (
        result.why
        == "6 steps recorded; something grows, and 4 more steps would show whether it continues"
    )
    (enough,) = check_run(short, budget('growth_per_step = "12 MB"')).results
    assert (enough.value, enough.passed) == (12_000_000, True)  # whatever more steps would say
    assert enough.why.startswith("at most; 6 steps recorded; ")
    (peak,) = check_run(short, budget('peak_allocated = "1 GiB"')).results
    assert peak.passed is None
    assert " is a lower bound (not recorded: device 0: " in peak.why
    (exact,) = check(RESNET, 'peak_allocated = "9 GiB"').results
    assert exact.why == ""


def test_a_problem_that_explains_the_excess_is_named_before_the_lines(tmp_path):
    good = run_of(api.load(DATA / "found" / "grads_kept_fixed.pickle.xz"))
    bad = run_of(api.load(DATA / "found" / "grads_kept.pickle.xz"))
    limit = read_budget(b'[budget]\npeak_requested = "530 MiB"\n', "vram.toml")
    for baseline, since in ((None, "In this run"), (good, "New since the baseline")):
        (finding,) = check_run(bad, limit, baseline).findings
        assert finding.evidence[0].startswith(f"{since}: Gradients of the previous step stay")
        assert finding.fix.startswith("call optimizer.zero_grad(set_to_none=True)")
    far = read_budget(b'[budget]\npeak_requested = "400 MiB"\n', "vram.toml")
    (finding,) = check_run(bad, far, good).findings
    assert "Gradients" not in finding.evidence[0]  # 24 MiB do not explain 153 MiB


def test_each_rank_that_keeps_a_limit_least_has_its_finding():
    text = "peak_allocated = 1\npeak_requested = 1\n"
    rank_0 = check(RESNET, text)
    allocated, requested = rank_0.results
    more, less = allocated.value + 1000, requested.value - 1000
    rank_1 = replace(
        rank_0, results=(replace(allocated, value=more), replace(requested, value=less))
    )
    ranks = {0: rank_0, 1: rank_1}
    findings = check_of_job("job", ranks, {}).findings
    assert [finding.limits for finding in findings] == [("peak_allocated",), ("peak_requested",)]
    titles = [finding.title for finding in findings]
    assert titles[0].startswith("peak_allocated is ")
    assert titles[0].endswith("(rank 1 and 1 more of 2)")
    assert titles[1].startswith("peak_requested is ")
    assert titles[1].endswith("(rank 0 and 1 more of 2)")
    assert [finding.bytes for finding in findings] == [more - 1, requested.value - 1]
    (joined,) = check_of_job("job", {0: rank_0, 1: rank_0}, {}).findings
    assert joined.limits == ("peak_allocated", "peak_requested")
    assert "also over: peak_requested (rank 0 and 1 more of 2)" in joined.title


def test_no_setting_is_the_fix_of_a_limit_of_allocated_memory():
    """A setting changes what is reserved, never what is allocated."""
    (allocated,) = check("recordings/gpt_varlen", 'peak_allocated = "4 GiB"').findings
    assert "expandable_segments" not in allocated.fix
    (reserved,) = check("recordings/gpt_varlen", 'peak_reserved = "6 GiB"').findings
    assert "expandable_segments:True" in reserved.fix


def test_a_broken_limit_comes_before_one_that_is_unknown():
    first, second = check("recordings/oom_train", "alloc_retries = 9").findings
    assert (first.id, second.id) == ("over_budget", "cannot_tell")
    assert second.title.startswith("alloc_retries is unknown: 1 is a lower bound")
