"""``vramlens leaks``: what grows with every step of a recording, who asks for it, and when it
will fail.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vramlens.cli.arguments import (
    add_file,
    add_forms,
    add_output,
    add_total,
    device,
    positive,
    size_or_none,
)
from vramlens.cli.input import read_recording
from vramlens.cli.message import say
from vramlens.cli.output import document_drawn, drawn, write_answer
from vramlens.foreign_text import one_line

if TYPE_CHECKING:
    from vramlens.trace import Trace

HELP = "Find what grows with every step, which line allocates it, and when memory will run out."
EXAMPLES = (
    ("vramlens leaks run.vram --total 80G", "what grows, and when memory runs out"),
    ("vramlens leaks run.vram --fail", "exit with 1 if something leaks"),
)
_FOUND = 1


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``leaks``."""
    add_file(parser)
    parser.add_argument(
        "--top", type=positive, metavar="N", help="how many leaks to show (default: 5)"
    )
    parser.add_argument(
        "--device",
        type=device,
        metavar="N",
        help="only this device, 0 or cuda:0 (default: all recorded devices)",
    )
    add_total(parser)
    parser.add_argument(
        "--at-least",
        type=size_or_none,
        metavar="SIZE",
        help="ignore leaks of fewer bytes per step (default: 1%% of the device over 100,000 "
        "steps); 0 shows all",
    )
    parser.add_argument(
        "--fail",
        action="store_true",
        help="exit with 1 if a leak that matters is proven or likely, or that is unknown",
    )
    add_forms(parser, "json", "markdown")
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Judges one file and writes the answer."""
    from vramlens.analyses.leaks.recorded_leaks import leaks_of_trace

    recording = read_recording(arguments.file)
    report = leaks_of_trace(
        recording,
        device=arguments.device,
        total_bytes=arguments.total,
        at_least_bytes=arguments.at_least,
    )
    text = drawn(report, arguments.format, arguments.output, top=arguments.top)
    if recording.is_profiler_trace and arguments.format != "json":
        text += _remains_drawn(recording, arguments)
    is_unjudged = arguments.fail and not report.found and bool(report.unjudged)
    if is_unjudged:
        say(f"cannot tell whether something leaks: {one_line(report.unjudged)}")
    write_answer(text, arguments.output, [arguments.file])
    return _FOUND if arguments.fail and (report.found or is_unjudged) else 0


def _remains_drawn(recording: Trace, arguments: argparse.Namespace) -> str:
    """What stays after each step of a profiler's trace: a few steps prove no leak, but show that."""
    from vramlens.analyses.attribution.attribution import attribute
    from vramlens.analyses.profile.remains import remains_of
    from vramlens.analyses.recording_explanation import choose_device
    from vramlens.report.profile.operator_table import remains_document

    chosen = choose_device(recording, arguments.device)
    remains = () if chosen is None else remains_of(attribute(recording, chosen))
    if chosen is None or not remains:
        return ""
    document = remains_document(remains, chosen.device)
    return "\n" + document_drawn(document, arguments.format, arguments.output)
