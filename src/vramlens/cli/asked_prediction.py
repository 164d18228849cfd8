"""A script's prediction, as several verbs ask for it: the options that decide it, and the answer."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vramlens.cards.known_cards import card_key, card_named
from vramlens.cli.arguments import CARDS_WORDS, card_sizes, positive, refuse_missing_script
from vramlens.cli.message import is_watched, say
from vramlens.errors import InputError, UsageError
from vramlens.units import GIB, MIB

if TYPE_CHECKING:
    from vramlens.analyses.budget.predicted_script import PredictedScript
    from vramlens.prediction.predicted_peak import Prediction
    from vramlens.prediction.ranks.lone_process_group import RankPlace

_STEPS_BETWEEN_LINES = 10
_DEFAULT_GPU, _PATIENCE_S = "h200", 1800
"""``cards.DEFAULT_GPU`` and ``script.PATIENCE_S``: to ask for them would load what predicts, for a
page of help.
"""


def add_prediction(parser: argparse._ActionsContainer, cards: str = "cards to check") -> None:
    """Adds the options that decide a prediction.

    Args:
        parser: or a group of one.
        cards: what becomes of the cards that are named.
    """
    parser.add_argument(
        "--gpu",
        default=_DEFAULT_GPU,
        metavar="NAME",
        help=f"predict for this card (default: {_DEFAULT_GPU}); the names are those of --cards",
    )
    parser.add_argument(
        "--steps",
        type=positive,
        metavar="N",
        help="stop after N optimizer steps (default: run the whole script)",
    )
    parser.add_argument(
        "--patience",
        type=positive,
        default=_PATIENCE_S,
        metavar="SECONDS",
        help=f"stop the script after this long (default: {_PATIENCE_S})",
    )
    parser.add_argument(
        "--cards",
        type=card_sizes,
        default=(),
        metavar="CARD,CARD",
        help=f"{cards}: {CARDS_WORDS}",
    )
    parser.add_argument(
        "--conf",
        default=None,
        metavar="SETTINGS",
        help="allocator settings, as in PYTORCH_ALLOC_CONF",
    )
    parser.add_argument(
        "--torch",
        metavar="VERSION",
        help="the PyTorch version to predict for (default: installed)",
    )
    parser.add_argument(
        "--batch",
        type=positive,
        metavar="N",
        help="batch size, for a script that defines model_fn, make_batch and loss_fn",
    )
    parser.add_argument(
        "--world-size",
        type=positive,
        metavar="N",
        help="predict one of N ranks, as torchrun starts them",
    )
    parser.add_argument(
        "--rank",
        type=int,
        default=0,
        metavar="R",
        help="the rank to predict (default: 0)",
    )


def refuse_options_without_prediction(arguments: argparse.Namespace) -> None:
    """Raises UsageError where an option decides a prediction, and none is asked for."""
    parser = argparse.ArgumentParser(add_help=False)
    add_prediction(parser)
    for name, default in vars(parser.parse_args([])).items():
        if getattr(arguments, name) != default:
            raise UsageError(f"--{name.replace('_', '-')} needs --predict")


def script_words(argv: Sequence[str]) -> list[str]:
    """The words of a command line that are the script's own: those after ``--``."""
    return list(argv[argv.index("--") + 1 :]) if "--" in argv else []


def refuse_question(arguments: argparse.Namespace) -> None:
    """Raises an error where what is asked for cannot be predicted, before anything runs."""
    card_named(arguments.gpu)
    refuse_missing_script(arguments.script)
    if "LOCAL_RANK" in os.environ:
        raise UsageError("predict runs one process: without torchrun, with --world-size N")


def predicted(arguments: argparse.Namespace) -> Prediction:
    """The prediction of ``arguments.script`` with ``arguments.arguments``.

    Raises:
        InputError: it cannot be predicted.
    """
    try:
        import torch  # noqa: F401
    except ImportError:
        raise InputError(
            "predict runs the script, and needs PyTorch (a CPU build is enough)"
        ) from None
    from vramlens.prediction.predicted_run import Question
    from vramlens.prediction.script import predict_script

    if arguments.batch is not None:
        return _predicted_batch(arguments)
    question = Question(
        gpu=arguments.gpu,
        torch_version=arguments.torch,
        conf=_conf(arguments),
        cards=tuple(arguments.cards),
        command=_command(arguments),
        place=_place(arguments),
    )
    return predict_script(
        arguments.script,
        arguments.arguments,
        question,
        arguments.steps,
        _tell,
        patience_s=arguments.patience,
    )


def asked_script(arguments: argparse.Namespace) -> PredictedScript:
    """The script that is asked about, with the options that decide its prediction."""
    from vramlens.analyses.budget.predicted_script import PredictedScript

    values = {
        "--gpu": None if arguments.gpu == _DEFAULT_GPU else arguments.gpu,
        "--steps": arguments.steps,
        "--patience": None if arguments.patience == _PATIENCE_S else arguments.patience,
        "--cards": ",".join(map(_card, arguments.cards)) or None,
        "--conf": arguments.conf,
        "--torch": arguments.torch,
        "--batch": arguments.batch,
        "--world-size": arguments.world_size,
        "--rank": arguments.rank or None,
    }
    options = [
        word for name, value in values.items() if value is not None for word in (name, str(value))
    ]
    return PredictedScript(arguments.script, tuple(options), tuple(arguments.arguments))


def _command(arguments: argparse.Namespace) -> tuple[str, ...]:
    return tuple(shlex.split(asked_script(arguments).command("predict")))


def _card(size: int) -> str:
    """A card as a person writes it: ``24G``, ``h100``."""
    return card_key(size) or (f"{size // MIB}MiB" if size % GIB else f"{size // GIB}G")


def _predicted_batch(arguments: argparse.Namespace) -> Prediction:
    """The prediction of a script's own functions with a batch that is asked for."""
    from vramlens.prediction.functions import predict
    from vramlens.prediction.hooks import hooks_of

    if arguments.world_size is not None:
        raise UsageError("--batch is for one process: leave --world-size out")
    hooks = hooks_of(arguments.script)
    prediction = predict(
        hooks.model_fn,
        hooks.make_batch,
        hooks.loss_fn,
        hooks.optimizer_fn,
        batch=arguments.batch,
        steps=arguments.steps or 2,
        gpu=arguments.gpu,
        torch_version=arguments.torch,
        conf=_conf(arguments),
        cards=arguments.cards,
    )
    command = list(_command(arguments))
    return replace(prediction, meta={**prediction.meta, "command": command})


def _conf(arguments: argparse.Namespace) -> str:
    """The allocator's settings: those that are asked for, else those of the environment."""
    if arguments.conf is not None:
        return str(arguments.conf)
    environment = os.environ
    return environment.get("PYTORCH_CUDA_ALLOC_CONF") or environment.get("PYTORCH_ALLOC_CONF") or ""


def _place(arguments: argparse.Namespace) -> RankPlace | None:
    """The rank that is asked for; None where the script is one process."""
    from vramlens.prediction.ranks.lone_process_group import RankPlace

    if arguments.world_size is None:
        if arguments.rank:
            raise UsageError("--rank needs --world-size N")
        return None
    return RankPlace(arguments.rank, arguments.world_size)


def _tell(step: int) -> None:
    if step % _STEPS_BETWEEN_LINES == 0 and is_watched():
        say(f"{step} steps predicted; --steps N ends it after N")
