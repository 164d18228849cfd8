"""``vramlens strategies``: how much memory each technique would save, without a GPU."""

from __future__ import annotations

import argparse
import math
import time
from typing import TYPE_CHECKING

from vramlens.cli.arguments import limit_size, positive, refuse_missing_script
from vramlens.cli.message import is_watched, say
from vramlens.cli.output import as_json, write_stdout
from vramlens.errors import InputError, UsageError

if TYPE_CHECKING:
    from vramlens.recovery.comparing.strategy_table import StrategyTable

HELP = "Predict how much memory each technique would save in a script, without a GPU."
EXAMPLES = (
    ("vramlens strategies train.py", "the peak with each technique"),
    ("vramlens strategies train.py --budget 22GiB", "and which of them fit"),
    (
        "vramlens strategies functions.py --batch 16",
        "a script of four functions, at any batch size",
    ),
)
_STEPS = 3
_SECONDS_BETWEEN_LINES = 2.0
"""In a log: one line of each strategy, unless they take less than that."""
_SCRIPT = """A SCRIPT runs as it is. With --batch N it defines four functions instead, and more
strategies are compared:

  from torch import nn, optim, rand

  def model_fn():
      return nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8))

  def make_batch(samples):
      return rand(samples, 512, device="cuda"), rand(samples, 8, device="cuda")

  def loss_fn(model, batch):
      inputs, targets = batch
      return nn.functional.mse_loss(model(inputs), targets)

  def optimizer_fn(parameters):
      return optim.AdamW(parameters)"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``strategies``."""
    parser.epilog = _SCRIPT
    parser.add_argument(
        "--batch",
        type=positive,
        metavar="N",
        help="batch size, for a script of four functions (below)",
    )
    parser.add_argument(
        "--budget",
        type=limit_size,
        metavar="SIZE",
        help="show which fit into this much reserved memory",
    )
    parser.add_argument(
        "--names",
        type=lambda text: text.split(","),
        metavar="NAME,NAME",
        help="only these techniques; A+B combines two (default: all)",
    )
    parser.add_argument(
        "--steps",
        type=positive,
        default=_STEPS,
        metavar="N",
        help=f"stop a script after N optimizer steps (default: {_STEPS})",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "script",
        metavar="SCRIPT",
        help="the script, unchanged; with --batch, one that defines model_fn, make_batch, loss_fn"
        " and optimizer_fn at its top",
    )
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="for the script, after --")


def run(arguments: argparse.Namespace) -> int:
    """Predicts every strategy and writes the table."""
    refuse_missing_script(arguments.script)
    try:
        import torch  # noqa: F401
    except ImportError:
        raise InputError("strategies needs PyTorch (a CPU build is enough)") from None
    table = _of_script(arguments) if arguments.batch is None else _of_functions(arguments)
    write_stdout(as_json(table.to_json()) if arguments.json else f"{table}\n")
    return 0


def _of_script(arguments: argparse.Namespace) -> StrategyTable:
    from vramlens.recovery.comparing.script_strategies import script_strategies

    return script_strategies(
        arguments.script,
        arguments.arguments,
        steps=arguments.steps,
        names=arguments.names,
        budget=arguments.budget,
        progress=_Progress(),
    )


def _of_functions(arguments: argparse.Namespace) -> StrategyTable:
    from vramlens.prediction.hooks import hooks_of
    from vramlens.recovery.comparing.strategy_comparison import strategies

    if arguments.arguments:
        raise UsageError("strategies: with --batch a script gets no arguments")
    hooks = hooks_of(arguments.script, needs_optimizer=True)
    assert hooks.optimizer_fn is not None
    return strategies(
        hooks.model_fn,
        hooks.make_batch,
        hooks.loss_fn,
        hooks.optimizer_fn,
        batch=arguments.batch,
        budget=arguments.budget,
        names=arguments.names,
        device="predicted",
        progress=_Progress(),
    )


class _Progress:
    """What is being predicted, on standard error: at once on a terminal; in a pipe or a log no more
    often than every few seconds.
    """

    def __init__(self) -> None:
        self._latest = -math.inf

    def __call__(self, line: str) -> None:
        now = time.monotonic()
        if is_watched() or now - self._latest >= _SECONDS_BETWEEN_LINES:
            self._latest = now
            say(line)
