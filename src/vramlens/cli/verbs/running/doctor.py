"""``vramlens doctor``: what on this machine helps or hinders memory debugging."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vramlens.cli.arguments import add_forms
from vramlens.cli.message import is_watched, say
from vramlens.cli.output import as_json, write_stdout
from vramlens.foreign_text import text_of
from vramlens.ground.wrapped_lines import lines_of_words
from vramlens.schema import SCHEMA

if TYPE_CHECKING:
    from vramlens.capture.doctor.checks import CheckOutcome, DoctorCheck
    from vramlens.capture.doctor.diagnosis import Diagnosis
    from vramlens.capture.doctor.nccl_check import CollectivesCheck

HELP = "Check what on this machine helps or hinders recording, or list the debug switches."
EXAMPLES = (
    ("vramlens doctor", "check whether recording works here"),
    ("vramlens doctor --switches", "the debug switches and their cost"),
)
_LINES = 24
_WIDEST = 110
_NARROWEST = 40


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``doctor``."""
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="also make a small recording on the GPU, in a separate process",
    )
    parser.add_argument(
        "--nccl",
        action="store_true",
        help="instead, check NCCL on this node's GPUs: all-reduce and other collectives, their"
        " values, bandwidth and memory",
    )
    parser.add_argument(
        "--switches", action="store_true", help="list the debug switches: what each does and costs"
    )
    add_forms(parser, "json")


def run(arguments: argparse.Namespace) -> int:
    """Looks and prints what was found."""
    from vramlens.capture.doctor.diagnosis import diagnose

    if arguments.nccl:
        return _nccl(arguments)
    if arguments.switches and arguments.format == "text" and not arguments.gpu:
        write_stdout(text_of(_switches(_width())) + "\n")
        return 0
    if is_watched():
        say("checking this machine; importing PyTorch takes a few seconds")
    diagnosis = diagnose(gpu=arguments.gpu, further=[("native core", _native_core)])
    if arguments.format == "json":
        write_stdout(as_json({"schema": SCHEMA, **diagnosis.to_dict()}))
        return 0
    lines = _report(diagnosis, _width(), _height())
    if arguments.switches:
        lines += ["", *_switches(_width())]
    write_stdout(text_of(lines) + "\n")
    return 0


def _nccl(arguments: argparse.Namespace) -> int:
    from vramlens.capture.doctor.nccl_check import check_collectives
    from vramlens.capture.doctor.torch_checks import ask_torch

    facts = ask_torch().facts or {}  # in a process aside: this one makes no context
    check = check_collectives(int(facts.get("visible") or 0))
    if arguments.format == "json":
        write_stdout(as_json({"schema": SCHEMA, "collectives": check.to_dict()}))
    else:
        write_stdout(text_of(_collectives(check, _width())) + "\n")
    return 0


def _collectives(check: CollectivesCheck, width: int) -> list[str]:
    """The check of collectives: the verdict, the table, the memory, what is set."""
    if check.error:
        next_step = ["Next, run it on a node with two GPUs or more."]
        if check.world > 1:
            next_step = ["Next, find out what is wrong here:", "  vramlens doctor"]
        return [
            *lines_of_words(f"NCCL could not be checked: {check.error}.", width),
            "",
            *next_step,
        ]
    return [
        *lines_of_words(_collectives_verdict(check), width),
        "",
        *_bandwidths(check),
        *_nccl_memory(check),
        *(f"{name}={setting}" for name, setting in check.environment.items()),
        "",
        "Next, see which switches make NCCL say more:",
        "  vramlens doctor --switches",
    ]


def _collectives_verdict(check: CollectivesCheck) -> str:
    wrong = [operation.name for operation in check.operations if not operation.right]
    library = f"NCCL {check.library}" if check.library else check.backend
    node = f"{check.world} GPUs ({library})"
    if wrong:
        return f"Wrong values from {', '.join(wrong)} on {node}: do not train on this node."
    return f"All collectives give the right values on {node}."


def _bandwidths(check: CollectivesCheck) -> Iterator[str]:
    from vramlens.units import format_size

    sizes = "".join(f"{format_size(speed.bytes):>12}" for speed in check.operations[0].speeds)
    yield f"{'bus bandwidth, GB/s':<20}{sizes}"
    for operation in check.operations:
        speeds = "".join(f"{speed.bus_bytes_per_s / 1e9:>12.2f}" for speed in operation.speeds)
        verdict = "" if operation.right else "  WRONG VALUES"
        yield f"{operation.name:<20}{speeds}{verdict}"


def _nccl_memory(check: CollectivesCheck) -> Iterator[str]:
    from vramlens.units import format_size

    if check.held_bytes is not None:
        size = format_size(check.held_bytes)
        yield ""
        yield f"NCCL holds {size} on each GPU for one group (by the driver's free memory)"
    if check.counted_bytes is not None:
        yield f"NCCL itself counts {format_size(check.counted_bytes)}"


def _native_core() -> CheckOutcome:
    from vramlens.capture.doctor.checks import ok, problem
    from vramlens.errors import VramlensError

    try:
        from vramlens import _native

        _native._core()
    except VramlensError as error:
        return problem(f"Recordings cannot be read: {error}.")
    except (ImportError, OSError) as error:
        do = "Install vramlens again: pip install --force-reinstall vramlens"
        return problem(f"Recordings cannot be read: {error}.", do)
    return ok("The native core of vramlens loads.")


def _report(diagnosis: Diagnosis, width: int, height: int) -> list[str]:
    """The verdict and the rows; what is well becomes a paragraph, then names, then notes do,
    until it fits.
    """
    rows = diagnosis.worst_first()
    worst = [check for check in rows if check.state == "problem"]
    bad = [check for check in rows if check.state != "ok"]
    well = rows[len(bad) :]
    brief = [*worst, *(replace(check, do="") for check in bad[len(worst) :])]
    next_step = _next(diagnosis, width)
    top = [*lines_of_words(diagnosis.verdict, width), ""]
    lines: list[str] = []
    for rows_and_words in (
        _rows(rows, width),
        [*_rows(bad, width), *_paragraph(well, width)],
        [*_rows(bad, width), *_named(well, width)],
        [*_rows(brief, width), *_named(well, width)],
        [*_rows(worst, width), *_named([*brief[len(worst) :], *well], width)],
    ):
        lines = [*top, *rows_and_words, *next_step]
        if len(lines) <= height:
            return lines
    return [*lines[: height - len(next_step) - 1], "...", *next_step]


def _rows(checks: Sequence[DoctorCheck], width: int) -> list[str]:
    name_width = max((len(check.name) for check in checks), default=0)
    lines: list[str] = []
    for check in checks:
        head = f"{check.state:<7}  {check.name:<{name_width}}  "
        blank = " " * len(head)
        lines += lines_of_words(check.text, width, head, blank)
        if check.do:
            lines += lines_of_words(check.do, width, f"{blank}Do: ", blank)
    return lines


def _paragraph(checks: Sequence[DoctorCheck], width: int) -> list[str]:
    text = " ".join(check.text for check in checks)
    return lines_of_words(text, width, "ok       ", " " * 9)


def _named(checks: Sequence[DoctorCheck], width: int) -> list[str]:
    from vramlens.capture.doctor.checks import STATES

    lines: list[str] = []
    for state in STATES:
        names = ", ".join(check.name for check in checks if check.state == state)
        text = f"{names} (all of it: --json)" if state == "ok" else names
        if names:
            lines += lines_of_words(text, width, f"{state:<7}  ", " " * 9)
    return lines


def _next(diagnosis: Diagnosis, width: int) -> list[str]:
    if diagnosis.ready:
        return ["", "Next, record your program:", "  vramlens run train.py"]
    if diagnosis.ready is None or any(check.state == "problem" for check in diagnosis.checks):
        return ["", "Next, do the first item under Do, then check again:", "  vramlens doctor"]
    text = "Next, explain a recording or a log from the machine that has the GPU:"
    return ["", *lines_of_words(text, width), "  vramlens explain FILE"]


def _switches(width: int) -> list[str]:
    from vramlens.capture.doctor.switches import SWITCHES

    when = "Debug switches, cheap ones first. They are read when the program starts: set them before it."
    lines = [
        *lines_of_words(when, width),
        "* is what 'vramlens run --debug' sets where you have not.",
    ]
    for weight in ("cheap", "slow", "changes memory"):
        title = {
            "cheap": "Cheap: may stay on",
            "slow": "Slow: for a debugging run",
            "changes memory": "Changes memory",
        }
        lines += ["", title[weight]]
        for switch in SWITCHES:
            if switch.weight != weight:
                continue
            setting = switch.present()
            state = f"   set: {setting[0]}={setting[1]}" if setting else ""
            lines.append(f"{'*' if switch.bundled else ' '} {switch.name}={switch.value}{state}")
            for text in (
                f"{switch.does[:1].upper()}{switch.does[1:]}. When: {switch.when}.",
                f"Costs: {switch.cost}. Default: {switch.default}.",
            ):
                lines += lines_of_words(text, width, " " * 6, " " * 6)
    return lines


def _width() -> int:
    return max(_NARROWEST, min(shutil.get_terminal_size((80, _LINES)).columns, _WIDEST))


def _height() -> int:
    """The lines to keep to: 24, and on a terminal, which may be larger, one less, where the
    prompt comes to stand.
    """
    if sys.stdout is None or not sys.stdout.isatty():
        return _LINES
    return max(_LINES, shutil.get_terminal_size((80, _LINES)).lines) - 1
