"""``vramlens check``: whether a recording stays within a budget; for continuous integration."""

from __future__ import annotations

import argparse
import os
import shlex
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING

from vramlens.cli.arguments import add_device, add_output
from vramlens.cli.asked_prediction import (
    add_prediction,
    asked_script,
    predicted,
    refuse_options_without_prediction,
    refuse_question,
    script_words,
)
from vramlens.cli.input import read_recording
from vramlens.cli.output import (
    OutputError,
    document_drawn,
    drawn,
    goes_to_file,
    refuse_inputs,
    write_answer,
    write_file,
)
from vramlens.errors import InputError, UsageError

if TYPE_CHECKING:
    from vramlens.analyses.budget.budget import Check
    from vramlens.analyses.budget.budget_file import Budget
    from vramlens.analyses.budget.budget_update import Update
    from vramlens.analyses.budget.predicted_script import PredictedScript

HELP = (
    "Check a recording against a memory budget (peak, growth, retries); exit with 1 if it is "
    "over budget."
)
EXAMPLES = (
    ("vramlens check run.vram --update", "write vram.toml from this run"),
    ("vramlens check run.vram --format github", "check it and annotate the pull request"),
    ("vramlens check runs/r1", "check a job: the worst rank decides each limit"),
    ("vramlens check train.py --predict --cards 24G", "fail unless it is sure to fit the card"),
)
_BUDGET = "vram.toml"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``check``."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a recording, a PyTorch memory snapshot, or the folder of a job: the worst rank "
        "decides each limit",
    )
    parser.add_argument("--budget", metavar="TOML", help=f"the budget file (default: {_BUDGET})")
    parser.add_argument(
        "--baseline",
        metavar="FILE",
        help="a recording within the budget, to show which lines grew since",
    )
    parser.add_argument(
        "--update",
        action="store_true",
        help="set the limits of the budget from this recording (creates the file if needed)",
    )
    parser.add_argument(
        "--predict",
        action="store_true",
        help="FILE is a script: check its predicted peak without a GPU (options below; the "
        "script's own arguments go after --)",
    )
    add_device(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--format",
        choices=("text", "json", "markdown", "github"),
        default="text",
        help="the output format; github writes annotations, and a job summary if "
        "GITHUB_STEP_SUMMARY is set",
    )
    form.add_argument(
        "--json",
        action="store_const",
        const="json",
        dest="format",
        help="the same as --format json",
    )
    add_output(parser)
    add_prediction(parser.add_argument_group("with --predict"), "cards that it has to fit for sure")


def run(arguments: argparse.Namespace) -> int:
    """Checks, or updates; 1 where a limit is broken or cannot be told."""
    _refuse_contradictions(arguments)
    budget = _budget(arguments)
    return _of_prediction(arguments, budget) if arguments.predict else _answer(arguments, budget)


def _refuse_contradictions(arguments: argparse.Namespace) -> None:
    if arguments.update and (arguments.baseline is not None or arguments.format != "text"):
        raise UsageError(
            "--update takes no --baseline and no --format: it rewrites the budget and says what"
            " changed"
        )
    if arguments.update and arguments.cards:
        raise UsageError("--update takes no --cards: a card's memory is a limit that you set")
    if not arguments.predict:
        refuse_options_without_prediction(arguments)
    elif arguments.baseline is not None:
        raise UsageError("--predict takes no --baseline: diff the script's predictions instead")


def _budget(arguments: argparse.Namespace) -> Budget | None:
    """The budget, with the cards of the command line; None for a first one, which --update is to
    write.

    Raises:
        InputError: it cannot be read, or has no limit.
    """
    from vramlens.analyses.budget.budget_file import CARD, SIZE, Budget, Limit

    is_named = arguments.budget is not None
    arguments.budget = arguments.budget or _BUDGET
    if arguments.update:
        return _read(arguments.budget) if os.path.lexists(arguments.budget) else None
    cards = tuple(Limit(CARD, SIZE, size, None) for size in arguments.cards)
    if cards and not is_named and not os.path.lexists(arguments.budget):
        arguments.budget = ""
        return Budget(source="", text="", limits=cards, tolerance=0.0, recorded={})
    budget = _read(arguments.budget)
    budget = replace(budget, limits=(*budget.limits, *cards))
    if not budget.limits:
        raise InputError(
            f'{arguments.budget}: [budget] has no limit in it; write peak_allocated = "20 GiB", or run --update'
        )
    return budget


def _of_prediction(arguments: argparse.Namespace, budget: Budget | None) -> int:
    """The same for a recording that is predicted from a script."""
    from vramlens.analyses.budget.budget_file import CARD

    arguments.script, arguments.arguments = arguments.file, script_words(arguments.argv)
    refuse_question(arguments)
    if goes_to_file(arguments.output):
        refuse_inputs(arguments.output, [arguments.script, arguments.budget])
    script = asked_script(arguments)
    limits = () if budget is None else budget.limits
    arguments.cards = tuple(dict.fromkeys(int(card.value) for card in limits if card.path == CARD))
    prediction = predicted(arguments)
    script = replace(
        script,
        reserved_bytes=prediction.reserved_bytes,
        low_bytes=prediction.low_bytes,
        high_bytes=prediction.high_bytes,
        is_open=prediction.turns_are_open,
        cards={card.total_bytes: card.fits for card in prediction.cards},
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments.file = os.path.join(folder, os.path.basename(arguments.script) + ".vram")
        prediction.write(arguments.file, redact=False)  # nobody keeps it
        return _answer(arguments, budget, script)


def _answer(
    arguments: argparse.Namespace, budget: Budget | None, script: PredictedScript | None = None
) -> int:
    from vramlens.questions import checked
    from vramlens.report.progress import reading_progress

    if arguments.update or budget is None:
        return _update(arguments, budget)
    check = checked(
        arguments.file, budget, arguments.baseline, arguments.device, reading_progress, script
    )
    inputs = (
        arguments.file,
        arguments.budget,
        *([arguments.baseline] if arguments.baseline else []),
    )
    write_answer(_drawn(check, arguments), arguments.output, inputs)
    if arguments.format == "github":
        _summarize(check)
    return 0 if check.passed else 1


def _read(path: str) -> Budget:
    """The budget file.

    Raises:
        InputError: it cannot be read.
    """
    from vramlens.analyses.budget.budget_file import read_budget_file

    try:
        return read_budget_file(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such budget; add --update to create it") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def _update(arguments: argparse.Namespace, budget: Budget | None) -> int:
    done = _updated(arguments, budget)
    write_file(arguments.budget, done.text, [arguments.file], option="--budget")
    from vramlens.report.check.story import update_document

    document = update_document(
        done, arguments.budget, is_new=budget is None, next_step=_review(arguments.budget)
    )
    text = document_drawn(document, "text", arguments.output)
    write_answer(text, arguments.output, (arguments.file, arguments.budget))
    return 0


def _updated(arguments: argparse.Namespace, budget: Budget | None) -> Update:
    """The budget with the figures of the recording, or of the worst rank of the folder."""
    if os.path.isdir(arguments.file):
        from vramlens.fleet.job_budget import update_job

        return update_job(arguments.file, budget, arguments.device)
    from vramlens.analyses.budget.budget_update import update
    from vramlens.analyses.compare.compared_run import run_of

    return update(run_of(read_recording(arguments.file), arguments.device), budget)


def _review(budget: str) -> tuple[str, str]:
    """How to have the budget reviewed, in a checkout; else what to do with it."""
    quoted = shlex.quote(budget)
    if not _is_in_checkout(budget):
        return (
            "check other runs against it",
            f"vramlens check OTHER.vram --budget {quoted}",
        )
    return "have it reviewed with the change", f"git add {quoted} && git diff --cached {quoted}"


def _is_in_checkout(path: str) -> bool:
    """Whether a folder above has a ``.git``.

    Git itself is not asked: the settings of a checkout may have it run commands.
    """
    folder = os.path.dirname(os.path.realpath(path))
    while not os.path.lexists(os.path.join(folder, ".git")):
        parent = os.path.dirname(folder)
        if parent == folder:
            return False
        folder = parent
    return True


def _drawn(check: Check, arguments: argparse.Namespace) -> str:
    if arguments.format != "github":
        return drawn(check, arguments.format, arguments.output)
    from vramlens.report.check.github import check_to_github

    return check_to_github(check, os.environ)


def _summarize(check: Check) -> None:
    """Adds the check to the step's summary, where GitHub asks for one.

    Raises:
        OutputError: it cannot be written.
    """
    from vramlens.report.check.github import SUMMARY_BYTES

    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    data = drawn(check, "markdown", None).encode("utf-8", "backslashreplace") + b"\n"
    try:
        # Others' lines of the same step stand before it: appended, in one call.
        with open(path, "ab") as file:
            if file.tell() + len(data) <= SUMMARY_BYTES:
                file.write(data)
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}") from None
