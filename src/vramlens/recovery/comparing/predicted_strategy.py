"""One strategy without a GPU: two training steps with shapes, in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from vramlens.cards.known_cards import DEFAULT_GPU, card_named
from vramlens.errors import VramlensError
from vramlens.prediction.own_process import in_a_process
from vramlens.prediction.predicted_run import Gathered, PredictedRun, Question, answer
from vramlens.recovery.comparing.strategy_kinds import NotHere, Program
from vramlens.recovery.comparing.strategy_run import prepared, step

_STEPS = 2
_ONLY_AS_EAGER = "the effect of torch.compile is not predicted"


def predict_strategy(name: str, program: Program) -> dict[str, Any]:
    """Plain figures as ``run_strategy`` gives them, without times, losses and a gradient."""
    if "compile" in name.split("+"):
        return {"outcome": "not here", "why": _ONLY_AS_EAGER}

    def run() -> Gathered:
        began = time.perf_counter()
        predicted = PredictedRun(card_named(DEFAULT_GPU))
        outcome: dict[str, Any] = {}
        with predicted.going():
            try:
                training = prepared(name, program.model_fn, program.optimizer_fn)
                for _ in range(_STEPS):
                    step(training, program.make_batch(program.batch), program.loss_fn)
                    if training.after is not None:
                        training.after()
                if why := training.idle():
                    outcome = {"outcome": "not here", "why": why}
            except NotHere as error:
                outcome = {"outcome": "not here", "why": str(error)}
            gathered = predicted.gathered(began)
        gathered.outcome = outcome
        return gathered

    try:
        return predicted_figures(run)
    except VramlensError as error:
        return {"outcome": "failed", "why": str(error)[:200]}


def predicted_figures(run: Callable[[], Gathered]) -> dict[str, Any]:
    """Plain figures of a run in a process of its own; what it says itself where it came to none.

    Raises:
        VramlensError: it cannot be predicted.
    """
    gathered = in_a_process(run)
    if gathered.outcome:
        return dict(gathered.outcome)
    prediction = answer(gathered, Question(conf=gathered.conf))
    return {
        "outcome": "done",
        "peak_allocated_bytes": prediction.allocated_bytes,
        "peak_reserved_bytes": prediction.reserved_bytes,
        "low_reserved_bytes": prediction.low_bytes,
        "high_reserved_bytes": prediction.high_bytes,
        "step_ms": None,
        "losses": [],
        "gradient": [],
    }
