"""What came or went between two runs, growth by line, and runs that do not do the same work."""

from __future__ import annotations

import io
import pickle
from functools import cache

import pytest

from support.copies import again, snapshot_of
from support.documents import markdown
from support.recordings import DATA, data_of
from vramlens import api
from vramlens.analyses.compare.compared_run import Run, run_of
from vramlens.analyses.compare.diff_answer import Diff
from vramlens.analyses.compare.diff_findings import headline
from vramlens.analyses.compare.run_diff import diff_runs
from vramlens.analyses.compare.work_sizes import work_sizes
from vramlens.read.snapshot import read_snapshot
from vramlens.report.diff.json import diff_to_json


@cache
def found(name: str) -> Run:
    return run_of(api.load(DATA / "found" / f"{name}.pickle.xz"))


def run(data: bytes) -> Run:
    return run_of(read_snapshot(io.BytesIO(data), "copy.pickle"))


@cache
def shared(name: str) -> Run:
    return run(data_of(f"recordings/{name}"))


def diff(before: Run, after: Run) -> Diff:
    return diff_runs([before], [after])


@pytest.mark.parametrize(
    ("name", "problem"),
    [("grads_kept", "gradients_kept"), ("double_load", "two_copies"),
     ("eval_graph", "unused_graph"), ("stranded_stream", "stranded_streams")],
)  # fmt: skip
def test_a_problem_that_is_mended_went_and_one_that_is_made_came(name, problem):
    bad, good = found(name), found(f"{name}_fixed")
    mended, broken = diff(bad, good), diff(good, bad)
    assert problem in [finding.id for finding in mended.went]
    assert problem in [finding.id for finding in broken.came]
    assert problem not in [finding.id for finding in mended.came]
    text = markdown(broken)
    assert text.index(broken.came[0].title.split(":")[0]) < text.index("peak requested")
    data = diff_to_json(broken)
    assert data["came"][0]["fix"] == broken.came[0].fix


def test_what_the_memory_is_for_is_no_problem_that_came():
    assert diff(found("double_load"), found("double_load_fixed")).came == ()


def test_growth_is_told_by_line_before_the_lines_at_the_peak():
    change = diff(shared("gpt"), shared("leak_outputs"))
    (line,) = change.growth_by_line
    assert line.before_bytes == 0
    assert line.after_bytes == change.growth_after
    assert line.place == change.after.leaks[0].place
    text = markdown(change)
    assert text.index("Changed growth, by line") < text.index("Changed at the peak, by line")
    assert diff_to_json(change)["growth_by_line"][0]["bytes_per_step_after"] == line.after_bytes


@cache
def gpt_with_batch(factor: int, functions: tuple[str, ...] = ("forward", "lm_loss")) -> Run:
    """The run with what some functions ask for so many times as large; ``lm_loss`` makes the inputs."""

    def size(event):
        grows = any(frame["name"] in functions for frame in event["frames"])
        return event["size"] * factor if grows else event["size"]

    return run(pickle.dumps(again(snapshot_of("recordings/gpt"), size)))


def test_a_larger_batch_is_another_workload_and_no_regression():
    change = diff(gpt_with_batch(1), gpt_with_batch(3))
    assert len(change.workload) == 1
    assert "nearly all activations are 3x as large" in change.workload[0]
    assert headline(change).startswith("Different workloads: nearly all activations are 3x")
    assert "By the numbers, the allocated peak is" in headline(change)
    assert diff_to_json(change)["different_workloads"] == list(change.workload)


def first_steps(name: str, steps: int) -> Run:
    """The run as if it had ended after so many steps."""
    snapshot = snapshot_of(f"recordings/{name}")
    (trace,) = snapshot["device_traces"]
    shorter = {**snapshot, "device_traces": [trace[: int(shared(name).view.steps.ends[steps - 1])]]}
    return run(pickle.dumps(again(shorter, lambda event: event["size"])))


def test_more_steps_of_a_growing_run_are_more_work():
    change = diff(first_steps("leak_outputs", 6), first_steps("leak_outputs", 12))
    assert change.peak_bytes_change > 0
    assert any("peak alike" in words for words in change.workload)
    assert headline(change).startswith("Different workloads: ")


def test_a_failure_that_ends_a_run_early_is_no_other_workload_and_its_end_no_new_problem():
    failed = run_of(api.load(DATA / "failures/gpt_varlen.cap50.vram"))
    whole = shared("gpt_varlen")
    mended, broken = diff(failed, whole), diff(whole, failed)
    assert mended.workload == broken.workload == ()
    text = markdown(mended)
    assert "Different workloads" not in text
    assert "New problems" not in text
    assert "Seen only in the later run (may not be new: the earlier run failed first)" in text
    assert "The earlier run needed more than its peak shows" in text
    assert "may not be gone: the later run failed first" in markdown(broken)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("-b 8", "-b 64"),
        ("-b8", "-b64"),
        ("--bs=8", "--bs 64"),
        ("--batch-size 8 --lr 1", "--batch_size=64 --lr 1"),
        ("data.batch_size=8", "data.batch_size=64"),
        ("--per_device_train_batch_size 8", "--per_device_train_batch_size 64"),
        ("--max_steps -1", "--max_steps 100"),
        ("--seq-len 512", "--seq-len 1024"),
    ],
)
def test_an_option_of_the_size_of_the_work_is_another_workload(before, after):
    assert work_sizes(before.split()) != work_sizes(after.split())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("--logging_steps 10", "--logging_steps 1"),
        ("--save-steps=10", "--save-steps=1"),
        ("--warmup_epochs 1", "--warmup_epochs 2"),
        ("-b 8 --lr 1", "--lr 2 -b 8"),
        ("--batch-size 8", "--batch_size=8"),
        ("--length_penalty 1", "--length_penalty 2"),
        ("batch.py", "-m batch"),
        ("-b main", "-b other"),
        ("batch" * 20_000, "tokens" * 20_000),  # no name is searched more than once
    ],
)
def test_other_options_are_the_same_work(before, after):
    assert work_sizes(before.split()) == work_sizes(after.split())


def test_a_factor_that_may_be_the_dtype_is_no_other_workload():
    change = diff(gpt_with_batch(1), gpt_with_batch(2, ("forward",)))
    (scale,) = [other for other in change.others if other.name == "scale"]
    assert scale.words.endswith("or a different dtype")
    assert change.workload == ()


def test_the_same_work_is_no_different_workload():
    assert diff(shared("gpt"), shared("leak_outputs")).workload == ()
    assert diff(found("grads_kept_fixed"), found("grads_kept")).workload == ()
