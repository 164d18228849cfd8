"""``vramlens dump``: a recording of a running program, now."""

from __future__ import annotations

import argparse
import os

from vramlens.cli.arguments import add_redact, positive
from vramlens.cli.output import write_stdout
from vramlens.errors import InputError

HELP = "Write a recording of a running program now."
EXAMPLES = (
    ("vramlens dump 4242", "write it where the program's recordings go"),
    ("vramlens dump 4242 -o now.vram", "write it to this file"),
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``dump``."""
    parser.add_argument(
        "pid",
        type=positive,
        metavar="PID",
        help="a program started with vramlens run or with vramlens.install()",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the file (default: where the program's recordings go)",
    )
    add_redact(parser)


def run(arguments: argparse.Namespace) -> int:
    """Asks the program and prints the file's path."""
    from vramlens.capture.recording.redact import is_redaction_wanted
    from vramlens.capture.triggers.dump_request import REDACTED, ask
    from vramlens.foreign_text import visible

    path = None if arguments.output is None else os.path.abspath(arguments.output)
    redact = is_redaction_wanted(arguments.redact)
    answer = ask(arguments.pid, {"path": path, "redact": redact})
    if "error" in answer:
        raise InputError(f"process {arguments.pid}: {answer['error']}")
    if redact and REDACTED not in answer:
        raise InputError(
            f"process {arguments.pid} has an older vramlens, which wrote"
            f" {visible(answer.get('path', ''))} unredacted: delete it, or keep it to yourself"
        )
    write_stdout(f"{visible(answer.get('path', ''))}\n")
    return 0
