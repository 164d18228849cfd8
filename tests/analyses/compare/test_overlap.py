"""How much of two programs is one: scripts that look alike and train different models, and
models in other scripts.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
from functools import cache

import pytest

from support.copies import snapshot_of
from support.edited import edited_snapshot
from support.recordings import DATA
from vramlens import api
from vramlens.analyses.compare.compared_run import CodeLine, Run, run_of
from vramlens.analyses.compare.diff_answer import Diff
from vramlens.analyses.compare.diff_findings import headline
from vramlens.analyses.compare.overlap import Overlap
from vramlens.analyses.compare.run_diff import diff_runs
from vramlens.analyses.finding import Place
from vramlens.read.snapshot import read_snapshot

MINE = "train/workloads.py"


@cache
def script(name: str, file: str) -> Run:
    """A recording, as if its program were a script of its own with a function ``train``."""

    def edit(place: Place) -> Place:
        return replace(
            place, file=file, function="train" if place.function == name else place.function
        )

    made = edited_snapshot(snapshot_of(f"recordings/{name}"), edit, lambda one: one == MINE)
    return run_of(read_snapshot(io.BytesIO(pickle.dumps(made, 4)), name))


def diff(before: Run, after: Run) -> Diff:
    return diff_runs([before], [after])


@pytest.mark.parametrize(("before", "after"), [("gpt", "resnet50"), ("gpt", "graphs")])
def test_scripts_with_the_same_names_in_them_are_two_programs(before, after):
    found = diff(script(before, "train_a.py"), script(after, "/job/train_b.py"))
    assert found.unrelated
    assert (
        headline(found) == "These look like two different programs: no line with memory is in both."
    )
    assert not diff(script(before, "train_a.py"), script(before, "/job/train_b.py")).unrelated


@pytest.mark.parametrize(("before", "after"), [("gpt", "resnet50"), ("gpt", "leak_none_warmup")])
def test_one_script_with_two_models_is_two_programs(before, after):
    found = diff(script(before, "train.py"), script(after, "train.py"))
    assert max(found.overlap.lines) > 0.1  # parameters and optimizer stand on the same lines
    assert found.unrelated
    assert "activations" in headline(found)


def test_one_model_in_another_script_is_one_program():
    found = diff(
        *(run_of(api.load(DATA / "captured" / f"{name}.vram")) for name in ("gpt", "lightning"))
    )
    assert not found.unrelated
    assert min(found.overlap.modules) > 0.5


def test_one_model_in_a_script_without_a_common_line_is_one_program():
    run = run_of(api.load(DATA / "captured" / "gpt.vram"))
    other = replace(
        run,
        code=tuple(
            CodeLine(elsewhere(line.place), frozenset({f"x:{n}"}), frozenset())
            for n, line in enumerate(run.code)
        ),
        lines={elsewhere(place): held for place, held in run.lines.items()},
    )
    found = diff(run, other)
    assert (found.overlap.lines, found.overlap.modules, found.unrelated) == ((0, 0), (1, 1), False)


def elsewhere(place: Place) -> Place:
    return Place("other.py", place.line, "other")


@pytest.mark.parametrize(
    ("lines", "activations", "modules", "words"),
    [
        ((0.0, 0.0), None, None, "no line with memory is in both"),
        ((0.0, 0.0), None, (0.0, 0.0), "no line or module with memory is in both"),
        (
            (0.0, 0.0), None, (0.43, 0.14),
            "they share no lines; shared modules hold 43% of the peak before and 14% after",
        ),
        ((0.02, 0.001), None, None, "shared lines have 2% of the bytes at the peak before and under 1% after"),
        ((0.6, 0.5), (0.01, 0.0), None, "shared lines have 1% of the activations at the peak before and 0% after"),
        ((0.6, 0.5), (0.0, 0.0), None, "no line with activations is in both"),
        (
            (0.05, 0.0), None, (0.4, 0.3),
            "shared lines have 5% of the bytes at the peak before and 0% after, shared modules 40% and 30%",
        ),
    ],
)  # fmt: skip
def test_the_shares_are_told(lines, activations, modules, words):
    assert Overlap(lines, activations, modules, True).words == words
