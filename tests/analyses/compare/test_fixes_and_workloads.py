"""Predicted pairs that are one fix apart, and pairs of another batch, input or model: a fix is called one,
and other work is called that (tests/data/pairs/make.py).
"""

from __future__ import annotations

from functools import cache

import pytest

from support.documents import markdown
from support.recordings import DATA
from vramlens import api
from vramlens.analyses.compare.compared_run import Run, run_of
from vramlens.analyses.compare.diff_answer import Diff
from vramlens.analyses.compare.diff_findings import headline
from vramlens.analyses.compare.differences import differences
from vramlens.analyses.compare.run_diff import diff_runs


@cache
def run(name: str) -> Run:
    return run_of(api.load(DATA / f"{name}.vram"))


def diff(before: str, after: str) -> Diff:
    return diff_runs([run(f"pairs/{before}")], [run(f"pairs/{after}")])


@pytest.mark.parametrize(
    ("before", "after", "begins"),
    [
        (
            "cnn",
            "cnn_nograd",
            "Growth gone: 262.01 MiB per step before at /home/user/train/cnn.py:8",
        ),
        (
            "view",
            "view_clone",
            "Grows less: 32.00 MiB per step before at /home/user/train/view.py:8",
        ),
        ("running", "running_fixed", "Growth gone: 264.19 MiB per step before at "),
        ("gpt", "gpt_ckpt", "The allocated peak is "),
        ("gpt", "gpt_autocast", "The allocated peak is "),
        ("gpt", "gpt_accum", "The allocated peak is "),
        ("cache", "cache_small", "The allocated peak is 448.00 MiB lower: "),
    ],
)
def test_a_fix_is_no_other_workload_and_brings_no_problem(before, after, begins):
    change = diff(before, after)
    assert change.workload == ()
    assert headline(change).startswith(begins)
    assert " lower: " in headline(change)
    assert change.came == ()
    assert "New problems" not in markdown(change)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("gpt", "gpt_b16", "activations are 2x as large: likely a different batch or input size"),
        ("gpt_b16", "gpt", "activations are 0.5x as large: likely a different batch or input size"),
        ("cnn", "cnn_nograd_b64", "activations are 2x as large: likely a different batch"),
        ("cnn", "cnn_r192", "the inputs have other sizes (the largest 6.00 MiB before, 13.50 MiB"),
        ("view_clone", "view_b192", "activations are 3x as large: likely a different batch"),
        ("cache", "cache_b48", "activations are 3x as large: likely a different batch"),
        ("running_fixed", "mlp_b8192", "activations are 2x as large: likely a different batch"),
        ("gpt", "gpt_d768", "parameters have other sizes (the largest 15.62 MiB before, 23.44 MiB"),
    ],
)
def test_another_batch_input_or_model_is_another_workload(before, after, words):
    change = diff(before, after)
    (phrase,) = change.workload
    assert words in phrase
    assert headline(change).startswith("Different workloads: ")


def test_a_batch_in_parts_is_told_and_is_no_other_workload():
    (scale,) = [other for other in diff("gpt", "gpt_accum").others if other.name == "scale"]
    assert scale.words.startswith(
        "nearly all activations are 0.25x as large, but the inputs are not"
    )


def test_growth_that_may_be_no_leak_says_so_where_it_is_new():
    change = diff("cnn_nograd", "cnn")
    assert headline(change).startswith(
        "Grows more, maybe a leak: 1.25 KiB per step before, 262.01 MiB"
    )
    (growth,) = [finding for finding in change.findings if finding.id == "growth_more"]
    assert growth.verdict == "possible"
    assert change.growth_before == change.growth_after == 0  # of what is proven or likely
    assert "growth/step" in markdown(change)


def test_the_command_is_told_by_what_differs():
    words = [other.words for other in diff("cnn", "cnn_nograd").others if other.name == "command"]
    assert words == ["the command: cnn.py before, cnn_nograd.py after"]


def test_a_failure_in_the_first_step_is_no_run_of_no_steps():
    failed, whole = run("failures/moe_lm.cap50"), run("pairs/gpt")
    (steps,) = [other for other in differences(whole, failed, {}, {}) if other.name == "steps"]
    assert (
        steps.words == "3 steps recorded before; the later run failed before its first step ended"
    )
    (steps,) = [other for other in differences(failed, whole, {}, {}) if other.name == "steps"]
    assert (
        steps.words == "the earlier run failed before its first step ended; 3 steps recorded after"
    )
