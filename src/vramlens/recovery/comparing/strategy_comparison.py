"""The comparison of strategies: each in a process of its own, in turns, on the user's model."""

from __future__ import annotations

import math
import pickle
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vramlens.argument_types import (
    function_given,
    number_given,
    optional,
    required_function,
    size_given,
    takes,
    text,
    texts,
)
from vramlens.errors import UsageError
from vramlens.recovery.comparing.strategy_kinds import COMBINATIONS, STRATEGIES, Program, parts_of
from vramlens.recovery.comparing.strategy_row import StrategyRow
from vramlens.recovery.comparing.strategy_run import run_strategy
from vramlens.recovery.comparing.strategy_table import PREDICTED, StrategyTable
from vramlens.units import parse_size

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_PATIENCE_S = 600


@takes(
    model_fn=required_function,
    make_batch=required_function,
    loss_fn=required_function,
    optimizer_fn=required_function,
    batch=number_given,
    budget=size_given,
    names=optional(texts),
    repeats=number_given,
    steps=number_given,
    device=optional(text),
    progress=function_given,
)
def strategies(  # noqa: PLR0913 - public: its options are keywords
    model_fn: Callable[[], Any],
    make_batch: Callable[[int], Any],
    loss_fn: Callable[[Any, Any], Any],
    optimizer_fn: Callable[[Any], Any],
    *,
    batch: int,
    budget: int | str | None = None,
    names: Sequence[str] | None = None,
    repeats: int = 2,
    steps: int = 5,
    device: str | None = None,
    progress: Callable[[str], Any] | None = None,
) -> StrategyTable:
    """What each way to save memory does to this model: peak, step time, loss and gradient,
    measured.

    Each runs in a process of its own, so that none finds the other's cache or fragmentation, and
    all take turns, so that a machine that slows down slows all of them.

    Args:
        model_fn: a fresh model on the device; called with the same random seed each time.
        make_batch: n -> a batch of n samples on the device.
        loss_fn: (model, batch) -> a mean loss, a sum, or (sum, count).
        optimizer_fn: a list of parameters -> an optimizer.
        batch: samples in a batch.
        budget: bytes, or as 22GiB: which of them fit.
        names: of strategies, joined by + to do several together; by default all and some
            combinations.
        repeats: processes for each; steps: timed steps in each process, after three that are not.
        device: as torch names it; by default the GPU, else the CPU, where bytes are those of a
            simulated device. ``"predicted"``: no GPU is needed, and peaks are those of
            ``vramlens.predict``; there are no times.
        progress: called with a line before each process.

    Raises:
        UsageError: an unknown name; ``optimizer_fn`` fails for the default; or the GPU is in use by
            this process already and the functions cannot be sent to another (define them in a file,
            or call this before anything else uses the GPU).
    """
    chosen = _chosen(names)
    program = Program(model_fn, make_batch, loss_fn, optimizer_fn, batch=batch)
    budget_bytes = parse_size(budget) if isinstance(budget, str) else budget
    if device == PREDICTED:
        return _predicted(chosen, program, budget_bytes, progress)
    # Counting asks without touching the GPU.
    where = device or ("cuda" if torch.cuda.device_count() else "cpu")
    context = _context(where, model_fn, make_batch, loss_fn, optimizer_fn)
    runs = _runs_in_turn(
        chosen,
        repeats,
        lambda name: _in_a_process(context, (name, where, program, steps)),
        progress,
    )
    reference = runs["default"][0]
    rows = [_row(name, runs[name], reference) for name in chosen]
    return StrategyTable(
        rows=tuple(_with_front(rows)),
        budget_bytes=budget_bytes,
        batch=batch,
        device=where,
        repeats=repeats,
        steps=steps,
    )


def _chosen(names: Sequence[str] | None) -> list[str]:
    chosen = list(names) if names is not None else [*STRATEGIES, *COMBINATIONS]
    for name in chosen:
        parts_of(name)
    if "default" not in chosen:
        chosen.insert(0, "default")
    return chosen


def _runs_in_turn(
    names: list[str],
    repeats: int,
    run: Callable[[str], dict[str, Any]],
    progress: Callable[[str], Any] | None,
) -> dict[str, list[dict[str, Any]]]:
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for turn in range(repeats):
        for name in names:
            if runs[name] and runs[name][-1]["outcome"] != "done":
                continue  # it will not be another the second time
            if progress is not None:
                progress(f"turn {turn + 1} of {repeats}: {name}")
            runs[name].append(run(name))
            _refuse_failing_optimizer(runs["default"])
    return runs


def _refuse_failing_optimizer(runs: list[dict[str, Any]]) -> None:
    """Raises UsageError where the default's optimizer failed: it would in every other row."""
    reason = runs[-1].get("optimizer_fn") if runs else None
    if reason:
        raise UsageError(
            f"strategies: optimizer_fn(parameters) failed: {reason} (it gets a list of parameters)"
        )


def _predicted(
    names: list[str],
    program: Program,
    budget_bytes: int | None,
    progress: Callable[[str], Any] | None,
) -> StrategyTable:
    from vramlens.recovery.comparing.predicted_strategy import predict_strategy

    runs = {name: predict_strategy(name, program) for name in predicting(names, progress)}
    return StrategyTable(
        rows=predicted_rows(runs),
        budget_bytes=budget_bytes,
        batch=program.batch,
        device=PREDICTED,
        repeats=1,
        steps=2,
    )


def predicting(names: Sequence[str], progress: Callable[[str], Any] | None) -> Iterator[str]:
    """Yields the names of strategies to predict, each after a line to ``progress``."""
    for number, name in enumerate(names, 1):
        if progress is not None:
            progress(f"predicting {name} ({number} of {len(names)})")
        yield name


def predicted_rows(runs: dict[str, dict[str, Any]]) -> tuple[StrategyRow, ...]:
    """The rows of strategies that were predicted, by their names."""
    return tuple(_row(name, [run], runs["default"]) for name, run in runs.items())


def _context(where: str, *functions: Any) -> Any:
    """How processes are started: where a GPU is in use, from a server that has never seen it."""
    multiprocessing = torch.multiprocessing
    if where == "cpu":
        # The first optimizer of a process imports a lot: here, once, instead of in each of them.
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        return multiprocessing.get_context(
            "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
        )
    try:
        pickle.dumps(functions)
    except Exception as error:
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return multiprocessing.get_context("fork")  # which sends nothing
        raise UsageError(
            "strategies: this process already uses the GPU, and the functions cannot be sent "
            f"to another process ({error}): define them at the top level of a file, or call "
            "strategies() before anything uses the GPU"
        ) from None
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["torch", "torch._dynamo", "vramlens.recovery.comparing.strategy_run"]
    )
    return context


def _in_a_process(context: Any, arguments: tuple[str, str, Program, int]) -> dict[str, Any]:
    from vramlens.prediction.own_process import EndedEarly, answer_of_process

    try:
        run: dict[str, Any] = answer_of_process(context, _work, arguments, _PATIENCE_S)
    except TimeoutError as error:
        return {"outcome": "failed", "why": str(error)}
    except EndedEarly as exit_code:
        return {"outcome": "failed", "why": f"the process exited with code {exit_code}"}
    return run


def _work(send: Any, name: str, where: str, program: Program, steps: int) -> None:
    if where == "cpu":
        torch.set_num_threads(1)  # threads do not survive the fork
    send.send(run_strategy(name, where, program, steps))
    send.close()


def _without_figures(name: str, run: dict[str, Any]) -> StrategyRow:
    parts = parts_of(name)
    return StrategyRow(
        name=name,
        outcome=run["outcome"],
        why=run.get("why", ""),
        peak_allocated_bytes=None,
        peak_reserved_bytes=None,
        step_ms=None,
        step_spread_ms=None,
        loss_drift=None,
        gradient_drift=None,
        difficulty=max(part.difficulty for part in parts),
        same_numbers=all(part.same_numbers for part in parts),
        best_for=parts[-1].best_for,
        edit="; ".join(part.edit for part in parts),
    )


def _row(name: str, runs: list[dict[str, Any]], reference: dict[str, Any]) -> StrategyRow:
    not_done = _without_figures(name, runs[0])
    done = [run for run in runs if run["outcome"] == "done"]
    if not done:
        return not_done
    times = [run["step_ms"] for run in done if run["step_ms"] is not None]
    return replace(
        not_done,
        outcome="done",
        why="",
        peak_allocated_bytes=max(run["peak_allocated_bytes"] for run in done),
        peak_reserved_bytes=max(run["peak_reserved_bytes"] for run in done),
        low_reserved_bytes=done[0].get("low_reserved_bytes"),
        high_reserved_bytes=done[0].get("high_reserved_bytes"),
        step_ms=statistics.median(times) if times else None,
        step_spread_ms=max(times) - min(times) if times else None,
        loss_drift=_loss_drift(done[0], reference),
        gradient_drift=_gradient_drift(done[0], reference),
    )


def _loss_drift(run: dict[str, Any], reference: dict[str, Any]) -> float | None:
    """The mean difference of the losses, as a share of the default's mean loss."""
    if reference["outcome"] != "done" or not run["losses"]:
        return None
    ours, theirs = run["losses"], reference["losses"]
    scale = statistics.fmean(map(abs, theirs)) or 1.0
    return statistics.fmean(abs(a - b) for a, b in zip(ours, theirs, strict=True)) / scale


def _gradient_drift(run: dict[str, Any], reference: dict[str, Any]) -> float | None:
    """The norm of the difference of the first gradients over the default's norm."""
    if reference["outcome"] != "done" or not run["gradient"] or not reference["gradient"]:
        return None
    difference = total = 0.0
    for ours, theirs in zip(run["gradient"], reference["gradient"], strict=True):
        if ours is None or theirs is None or ours.shape != theirs.shape:
            continue
        difference += float(((ours - theirs) ** 2).sum())
        total += float((theirs**2).sum())
    return math.sqrt(difference / total) if total else None


def _with_front(rows: list[StrategyRow]) -> list[StrategyRow]:
    """The rows, those on the Pareto front marked: nothing is both smaller and faster."""
    done = [row for row in rows if row.peak_allocated_bytes is not None and row.step_ms is not None]

    def dominated(row: StrategyRow) -> bool:
        return any(
            other is not row
            and other.peak_allocated_bytes <= row.peak_allocated_bytes  # type: ignore[operator]
            and other.step_ms < row.step_ms  # type: ignore[operator]
            for other in done
        )

    return [row.on_front(row in done and not dominated(row)) for row in rows]
