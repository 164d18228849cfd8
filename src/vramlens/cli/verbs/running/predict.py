"""``vramlens predict``: the peak of a script before its first run, without a GPU."""

from __future__ import annotations

import argparse
import ast
import os
import shlex
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vramlens.cli.arguments import add_redact
from vramlens.cli.asked_prediction import add_prediction, predicted, refuse_question
from vramlens.cli.message import say
from vramlens.cli.output import as_json, drawn, refuse_inputs, write_stdout
from vramlens.errors import InputError, UsageError

if TYPE_CHECKING:
    from vramlens.analyses.explanation import Explanation
    from vramlens.prediction.predicted_peak import Prediction

HELP = "Predict the peak memory of a script without a GPU: by line, and which cards it fits."
EXAMPLES = (
    ("vramlens predict train.py", "its peak, without a GPU"),
    ("vramlens predict --cards 24G,80G train.py", "which cards it fits"),
)


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
    add_prediction(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="also write the prediction as a recording (.vram)"
    )
    add_redact(parser)


def run(arguments: argparse.Namespace) -> int:
    """Predicts one script and writes the answer."""
    _take_options_after_script(arguments)
    _check(arguments)
    prediction = predicted(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.output or os.path.join(folder, "predicted.vram")
        whole = _written(path, prediction.write, arguments)
        failure = None
        if prediction.failure is not None:
            failure = _written(failure_path(path), prediction.write_failure, arguments)
        write_stdout(_drawn(prediction, whole, failure, arguments))
    return 0


def failure_path(path: str) -> str:
    """The recording beside a prediction's own that ends with the request that fails."""
    return f"{path.removesuffix('.vram')}.oom.vram"


def _written(path: str, write: Callable[..., None], arguments: argparse.Namespace) -> Explanation:
    """A recording's explanation, after it was written; without its path where nobody asked for it."""
    try:
        write(path, redact=arguments.redact)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; it was not written") from None
    explanation = _explained(path)
    if arguments.output is None:
        unwritten = replace(explanation.recording, source="")
        explanation = replace(explanation, recording=unwritten)
    return explanation


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
    _note_options_of_both(arguments.script, words, parser)
    arguments.arguments = [*unknown_words, *script_words]


def _note_options_of_both(
    script: str, words: Sequence[str], parser: argparse.ArgumentParser
) -> None:
    """Says which options after the script this verb took although the script has such ones, too."""
    strings = _strings_in(script) if words else frozenset()
    taken = [
        shlex.join(option_words)
        for option_words in _options_in(words, parser)
        if option_words[0].partition("=")[0] in strings
    ]
    if taken:
        verb, pronoun = ("was", "it") if len(taken) == 1 else ("were", "them")
        say(
            f"{', '.join(taken)} {verb} taken by predict; for the script, write {pronoun} after --:"
            f" vramlens predict {shlex.quote(script)} -- {' '.join(taken)}"
        )


def _options_in(words: Sequence[str], parser: argparse.ArgumentParser) -> Iterator[Sequence[str]]:
    """The options of a parser among some words, each with its argument."""
    takes_argument = {
        name: action.nargs != 0 for action in parser._actions for name in action.option_strings
    }
    for place, word in enumerate(words):
        name, equals, _ = word.partition("=")
        if name in takes_argument:
            yield words[place : place + (2 if takes_argument[name] and not equals else 1)]


def _strings_in(script: str) -> frozenset[str]:
    """The string literals of a script; none where its source cannot be read."""
    from vramlens.ground.source_code import parsed_file

    tree = parsed_file(script)
    nodes = () if tree is None else ast.walk(tree)
    constants = (node.value for node in nodes if isinstance(node, ast.Constant))
    return frozenset(constant for constant in constants if isinstance(constant, str))


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
    refuse_question(arguments)
    if arguments.output is None:
        return
    for path in (arguments.output, failure_path(arguments.output)):
        refuse_inputs(path, [arguments.script])
        if os.path.isdir(path):
            raise UsageError(f"-o {arguments.output}: {path} is a folder; choose another file name")


def _explained(path: str) -> Explanation:
    from vramlens import api
    from vramlens.analyses.explanation import Explanation

    explanation = api.explain(path)
    assert isinstance(explanation, Explanation)
    return explanation


def _drawn(
    prediction: Prediction,
    whole: Explanation,
    failure: Explanation | None,
    arguments: argparse.Namespace,
) -> str:
    """The prediction, and what there is to say of its peak: of the failure where it would not come so
    far.
    """
    if arguments.json:
        from vramlens.report.explain.json import to_json

        failure_json = None if failure is None else to_json(failure)
        prediction_json = {**prediction.to_json(), "failure": failure_json}
        return as_json({**to_json(whole), "prediction": prediction_json})
    if failure is None:
        return f"{prediction}\n\n{drawn(_without_decisions(whole), 'text', None)}"
    written = ""
    if arguments.output is not None:
        paths = f"{arguments.output} (the whole run), {failure_path(arguments.output)}"
        written = f"\n  written: {paths} (up to the request that fails)"
    return f"{prediction}{written}\n\n{drawn(_without_decisions(failure), 'text', None)}"


def _without_decisions(explanation: Explanation) -> Explanation:
    """The same without what the prediction itself has said above."""
    facts = explanation.recording
    meta = replace(facts.meta, decisions=None)
    return replace(explanation, recording=replace(facts, meta=meta))
