"""``vramlens strategies``: what each way to save memory would bring, without a GPU."""

from __future__ import annotations

import argparse
import sys

from vramlens.cli.arguments import limit_size, positive
from vramlens.cli.message import say
from vramlens.cli.output import as_json, write_stdout
from vramlens.errors import InputError

HELP = "Predict what each way to save memory would bring to a script, without a GPU."
EXAMPLES = (
    ("vramlens strategies train.py --batch 16", "each way to save memory, its peak"),
    ("vramlens strategies train.py --batch 16 --budget 22GiB", "and which of them fit"),
)
_SCRIPT = """A SCRIPT defines four functions:

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
        "--batch", type=positive, required=True, metavar="N", help="samples in a batch"
    )
    parser.add_argument(
        "--budget", type=limit_size, metavar="SIZE", help="what may be reserved: which of them fit"
    )
    parser.add_argument(
        "--names",
        type=lambda text: text.split(","),
        metavar="NAME,NAME",
        help="only these; joined by + several together (default: all)",
    )
    parser.add_argument("--json", action="store_true", help="print data: one JSON object")
    parser.add_argument(
        "script",
        metavar="SCRIPT",
        help="defines model_fn, make_batch, loss_fn and optimizer_fn at its top",
    )


def run(arguments: argparse.Namespace) -> int:
    """Predicts every strategy and writes the table."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise InputError("strategies needs PyTorch (a CPU build is enough)") from None
    from vramlens.prediction.hooks import hooks_of
    from vramlens.recovery.comparing.strategy_comparison import strategies

    hooks = hooks_of(arguments.script, needs_optimizer=True)
    assert hooks.optimizer_fn is not None
    table = strategies(
        hooks.model_fn,
        hooks.make_batch,
        hooks.loss_fn,
        hooks.optimizer_fn,
        batch=arguments.batch,
        budget=arguments.budget,
        names=arguments.names,
        device="predicted",
        progress=_tell,
    )
    write_stdout(as_json(table.to_json()) if arguments.json else f"{table}\n")
    return 0


def _tell(line: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        say(line)
