"""Strategies for a script that runs as it is, each predicted in a process of its own."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from vramlens.errors import InputError, UsageError, VramlensError
from vramlens.prediction.predicted_run import Gathered, Question
from vramlens.prediction.script import NotPredicted, run_script
from vramlens.recovery.comparing.predicted_strategy import predicted_figures
from vramlens.recovery.comparing.script_changes import FROM_OUTSIDE, ScriptChanges
from vramlens.recovery.comparing.strategy_comparison import predicted_rows, predicting
from vramlens.recovery.comparing.strategy_kinds import parts_of
from vramlens.recovery.comparing.strategy_table import PREDICTED, StrategyTable

_PATIENCE_S = 600


def script_strategies(
    path: str,
    arguments: Sequence[str],
    *,
    steps: int,
    names: Sequence[str] | None = None,
    budget: int | None = None,
    progress: Callable[[str], Any] | None = None,
) -> StrategyTable:
    """What each way to save memory would bring to a script, up to so many optimizer steps.

    Raises:
        UsageError: an unknown name, or one that needs another training loop.
        InputError: the script cannot be predicted.
    """
    runs: dict[str, dict[str, Any]] = {}
    for name in predicting(_chosen(names), progress):
        runs[name] = _predicted(name, path, arguments, steps)
        if name == "default" and runs[name]["outcome"] == "failed":
            raise InputError(runs[name]["why"])
    return StrategyTable(
        rows=predicted_rows(runs),
        budget_bytes=budget,
        batch=None,
        device=PREDICTED,
        repeats=1,
        steps=steps,
        script=_as_typed(path, arguments),
    )


def _as_typed(path: str, arguments: Sequence[str]) -> str:
    """A script and its arguments as a shell takes them."""
    return shlex.join([path, *(["--", *arguments] if arguments else [])])


def _chosen(names: Sequence[str] | None) -> list[str]:
    chosen = list(FROM_OUTSIDE if names is None else names)
    for name in chosen:
        for part in parts_of(name):
            if part.name not in FROM_OUTSIDE:
                raise UsageError(
                    f"strategies: {part.name} needs a function for each part of a training: define"
                    " model_fn, make_batch, loss_fn and optimizer_fn and say --batch N"
                )
    return chosen if "default" in chosen else ["default", *chosen]


def _predicted(name: str, path: str, arguments: Sequence[str], steps: int) -> dict[str, Any]:
    """Plain figures as ``predict_strategy`` gives them."""
    question = Question()

    def run() -> Gathered:
        changes = ScriptChanges(name)
        _be_silent()
        began = time.perf_counter()
        try:
            gathered = run_script(
                path, arguments, question, steps, patience_s=_PATIENCE_S, prepare=changes.put
            )
        except NotPredicted as error:
            return Gathered.failed(str(error), began)
        if why := changes.why_not:
            gathered.outcome = {"outcome": "not here", "why": why}
        return gathered

    try:
        return predicted_figures(run)
    except VramlensError as error:
        return {"outcome": "failed", "why": str(error)[:300]}


def _be_silent() -> None:
    """Keeps what a script prints, ten times over, off the terminal."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
