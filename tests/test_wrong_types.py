"""Every public function that needs PyTorch, with arguments of wrong types: one line that names the
argument, or an error of vramlens's own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import vramlens
from vramlens.argument_types import texts

torch = pytest.importorskip("torch")

WRONG = (5, 2.5, b"x", [5], {}, object(), True, math.nan, "bananas", None)
MODEL = torch.nn.Linear(4, 4)
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1)


def make_batch(samples: int) -> Any:
    return torch.zeros(samples, 4)


def loss_of(model: Any, batch: Any) -> Any:
    return model(batch).mean()


TRAINING = {"make_batch": make_batch, "loss_fn": loss_of}
FRESH = {"model_fn": lambda: MODEL, **TRAINING, "optimizer_fn": lambda model: OPTIMIZER, "batch": 2}
REFUSES: list[tuple[Callable[..., Any], dict[str, Any], dict[str, tuple[object, ...]]]] = [
    (vramlens.install, {}, {"output": (5, [5], object()), "max_events": (2.5, "x", True)}),
    (vramlens.record, {"path": "x"}, {"path": (5, None, b"x"), "max_events": (2.5, "x")}),
    (vramlens.snapshot, {}, {"path": (5, None, [5], b"x")}),
    (vramlens.holders, {}, {"top": (2.5, "x", None, True)}),
    (vramlens.no_leaks, {}, {"steps": (2.5, "x", None, True)}),
    (
        vramlens.Monitor,
        {},
        {
            "interval": ("x", None, [5], True),
            "alerts": (5, None, "used > 1", [5]),
            "on_alert": (5, "x"),
            "command": (5, [5], b"x"),
            "webhook": (5, [5]),
            "quiet": (5, "x", None),
        },
    ),
    (
        vramlens.predict,
        FRESH,
        {
            "model_fn": (5, None, MODEL.weight),
            "make_batch": (5, None),
            "loss_fn": ("x", None),
            "optimizer_fn": (5, "x"),
            "batch": ("x", 2.5, None, True),
            "steps": ("x", None),
            "gpu": (5, None),
            "conf": (5, None),
        },
    ),
    (
        vramlens.find_batch_size,
        {"model": MODEL, **TRAINING},
        {
            "model": (5, "x", None, torch.nn.Linear),
            "make_batch": (5, None),
            "loss_fn": (5, None),
            "limit": (2.5, [5], True),
            "largest": ("x", 2.5),
            "start": ("x", None),
            "device": (5, [5]),
        },
    ),
    (vramlens.retry, {}, {"function": (5, "x"), "chunk": ("x", 2.5), "pool": ("x", None)}),
    (vramlens.inject_oom, {}, {"phase": (5, None), "rank": ("x", 2.5), "every": ("x", 2.5)}),
    (vramlens.place, {"model": MODEL, "batch": 1}, {"model": (5, None), "dispatch": ("x", None)}),
    (
        vramlens.plan,
        {"model": MODEL, **TRAINING, "budget": "1GiB", "batch": 2},
        {
            "model": (5, None),
            "make_batch": (5, None),
            "loss_fn": (5, None),
            "budget": (2.5, None, [5]),
            "batch": ("x", 2.5, None),
        },
    ),
    (
        vramlens.strategies,
        FRESH,
        {
            "model_fn": (5, None),
            "optimizer_fn": (5, None),
            "batch": ("x", None),
            "budget": (2.5, [5]),
            "names": (5, "plain", [5]),
            "repeats": ("x", None),
            "steps": ("x", None),
            "progress": (5, "x"),
        },
    ),
    (
        vramlens.BalancedBatchSampler,
        {"lengths": [3, 4], "batch_size": 1},
        {
            "batch_size": ("x", 2.5, None),
            "packed": ("x", None),
            "num_replicas": ("x", 2.5),
            "rank": ("x", 2.5),
            "seed": ("x", None),
            "drop_last": ("x", None),
        },
    ),
    (
        vramlens.AdaptiveBatchLoader,
        {"dataset": [1, 2], "max_memory": "1GiB"},
        {
            "max_memory": (2.5, None, [5]),
            "model": (5, "x"),
            "make_batch": (5, "x"),
            "length_fn": (5, "x"),
            "longest": ("x", 2.5),
            "shuffle": ("x", None),
            "seed": ("x", None),
        },
    ),
]
"""A function, arguments with which it could begin, and by argument what it has to refuse."""
CASES = [
    pytest.param(function, arguments, name, values, id=f"{function.__name__}-{name}")
    for function, arguments, refused in REFUSES
    for name, values in refused.items()
]


@pytest.mark.parametrize(("function", "arguments", "name", "values"), CASES)
def test_a_wrong_type_is_one_line_that_names_the_argument(
    function: Callable[..., Any],
    arguments: dict[str, Any],
    name: str,
    values: tuple[object, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in values:
        with pytest.raises(TypeError) as caught:
            function(**{**arguments, name: value})
        assert re.fullmatch(rf"{name} takes .+, not .+", str(caught.value)), str(caught.value)


def test_texts_that_can_be_read_once_are_not_used_up() -> None:
    rules = iter(["used > 92%"])
    texts("alerts", rules)
    assert list(rules) == ["used > 92%"]


@pytest.mark.parametrize("value", WRONG, ids=lambda value: type(value).__name__)
def test_what_is_no_tensor_model_or_trainer_is_said_in_words(value: object) -> None:
    for function in (vramlens.who_holds, vramlens.guard, vramlens.guard_trainer):
        said = ""
        try:
            function(value)
        except (TypeError, vramlens.VramlensError) as error:
            said = str(error)
        assert "\n" not in said
        assert "has no attribute" not in said
