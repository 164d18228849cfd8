"""``vramlens predict``: the peak of a script before its first run, without a GPU."""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING

from vramlens.cli.arguments import card_sizes, positive, refuse_missing_script
from vramlens.cli.message import is_watched, say
from vramlens.cli.output import as_json, drawn, refuse_inputs, write_stdout
from vramlens.errors import InputError, UsageError
from vramlens.units import GIB, MIB

if TYPE_CHECKING:
    from vramlens.analyses.explanation import Explanation
    from vramlens.prediction.predicted_peak import Prediction
    from vramlens.prediction.ranks.lone_process_group import RankPlace

HELP = "Predict the peak memory of a script without a GPU: by line, and which cards it fits."
EXAMPLES = (
    ("vramlens predict train.py", "its peak, without a GPU"),
    ("vramlens predict --cards 24G,80G train.py", "which cards it fits"),
)
_STEPS_BETWEEN_LINES = 10
_DEFAULT_GPU = "h200"
"""``cards.DEFAULT_GPU``: to ask for it would load what predicts, for a page of help."""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``predict``."""
    _add_options(parser)
    parser.add_argument("script", metavar="SCRIPT", help="the script, unchanged")
    parser.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="arguments for the script; options of predict also work here, unless they follow --",
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gpu",
        default=_DEFAULT_GPU,
        metavar="NAME",
        help=f"predict for this card (default: {_DEFAULT_GPU})",
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
        default=1800,
        metavar="SECONDS",
        help="stop the script after this long (default: 1800)",
    )
    parser.add_argument(
        "--cards",
        type=card_sizes,
        default=(),
        metavar="CARD,CARD",
        help="cards to check: sizes or names (24G,H100)",
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
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="also write the prediction as a recording (.vram)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Predicts one script and writes the answer."""
    _take_options_after_script(arguments)
    _check(arguments)
    prediction = _predicted(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.output or os.path.join(folder, "predicted.vram")
        try:
            prediction.write(path)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}; nothing was written") from None
        explanation = _explained(path)
        if arguments.output is None:
            unwritten = replace(explanation.recording, source="")
            explanation = replace(explanation, recording=unwritten)
        write_stdout(_drawn(prediction, explanation, arguments))
    return 0


def written_prediction(script: str, path: str) -> None:
    """Predicts a script as it is and writes the recording, for another verb.

    Raises:
        InputError: it cannot be predicted.
    """
    parser = argparse.ArgumentParser()
    prepare_parser(parser)
    arguments = parser.parse_args([script])
    _check(arguments)
    _predicted(arguments).write(path)


def _take_options_after_script(arguments: argparse.Namespace) -> None:
    """Takes vramlens's own options out of those after the script, as far as ``--``; whoever wants
    the script to have one of that name writes it after ``--``.
    """
    words, script_words = _parted(arguments)
    parser = argparse.ArgumentParser(
        prog="vramlens predict", add_help=False, allow_abbrev=False, exit_on_error=False
    )
    _add_options(parser)
    try:
        _, unknown_words = parser.parse_known_args(words, arguments)
    except argparse.ArgumentError as error:
        raise UsageError(f"predict: {error}") from None
    arguments.arguments = [*unknown_words, *script_words]


def _parted(arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The words after the script up to ``--``, and those after it.

    Python before 3.13 leaves the first ``--`` out of what remains: the command line still has it.
    """
    remaining = list(arguments.arguments)
    argv = list(arguments.argv)
    count = len(argv) - argv.index("--") - 1 if "--" in argv else 0
    if count > len(remaining):  # it stands before the script
        count = 0
    words_before_dashes = remaining[: len(remaining) - count]
    if words_before_dashes[-1:] == ["--"]:
        words_before_dashes.pop()
    return words_before_dashes, remaining[len(remaining) - count :]


def _check(arguments: argparse.Namespace) -> None:
    from vramlens.prediction.card.cards import card_named

    card_named(arguments.gpu)
    refuse_missing_script(arguments.script)
    if arguments.output is not None:
        refuse_inputs(arguments.output, [arguments.script])
        if os.path.isdir(arguments.output):
            raise UsageError(f"-o {arguments.output}: is a folder; choose a file name")
    if "LOCAL_RANK" in os.environ:
        raise UsageError("predict runs one process: without torchrun, with --world-size N")


def _predicted(arguments: argparse.Namespace) -> Prediction:
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


def _command(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The command line, with the options that decide the prediction."""
    values = {
        "--gpu": None if arguments.gpu == _DEFAULT_GPU else arguments.gpu,
        "--steps": arguments.steps,
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
    script_arguments = ["--", *arguments.arguments] if arguments.arguments else []
    return ("vramlens", "predict", *options, arguments.script, *script_arguments)


def _card(size: int) -> str:
    """A card's memory as a person writes it: ``24G``."""
    return f"{size // MIB}MiB" if size % GIB else f"{size // GIB}G"


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


def _explained(path: str) -> Explanation:
    from vramlens import api
    from vramlens.analyses.explanation import Explanation

    explanation = api.explain(path)
    assert isinstance(explanation, Explanation)
    return explanation


def _drawn(prediction: Prediction, explanation: Explanation, arguments: argparse.Namespace) -> str:
    if arguments.json:
        from vramlens.report.explain.json import to_json

        return as_json({**to_json(explanation), "prediction": prediction.to_json()})
    return f"{prediction}\n\n{drawn(_without_decisions(explanation), 'text', None)}"


def _without_decisions(explanation: Explanation) -> Explanation:
    """The same without what the prediction itself has said above."""
    facts = explanation.recording
    meta = None if facts.meta is None else replace(facts.meta, decisions=None)
    return replace(explanation, recording=replace(facts, meta=meta))
