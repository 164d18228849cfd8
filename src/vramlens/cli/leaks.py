"""``vramlens leaks``: what grows with every step of a recording, who asks for it, and when it will fail."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from vramlens.cli.explain import _positive, device, size
from vramlens.cli.output import Page, write_file, write_stdout

if TYPE_CHECKING:
    from vramlens.analyses.leaks import LeakReport

HELP = "Say what grows with every step, which line asks for it, and when memory will run out."
_FILE_WIDTH = 100
_FOUND = 1


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``leaks``."""
    parser.add_argument("file", metavar="FILE", help="a recording or a PyTorch memory snapshot; - reads standard input")
    parser.add_argument("--top", type=_positive, metavar="N", help="how many leaks to show (default: 5)")
    parser.add_argument(
        "--device",
        type=device,
        metavar="N",
        help="only this device, 0 or cuda:0 (default: every one that was recorded)",
    )
    parser.add_argument("--total", type=size, metavar="SIZE", help="the GPU's memory, for example 80GiB")
    parser.add_argument("--fail", action="store_true", help="exit with 1 where a leak is proven or likely")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print data: one JSON object")
    form.add_argument("--markdown", action="store_true", help="print Markdown, for an issue or a pull request")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to a file instead of standard output")


def run(arguments: argparse.Namespace) -> int:
    """Judges one file and writes the answer."""
    from vramlens import api
    from vramlens.analyses.leaks import leaks_of_trace
    from vramlens.report.progress import reading_progress

    with reading_progress("reading") as progress:
        recording = api.load(arguments.file, progress=progress)
    report = leaks_of_trace(recording, device=arguments.device, total_bytes=arguments.total)
    to_file = arguments.output not in (None, "-")
    text = _written(report, arguments, to_file)
    if to_file:
        write_file(arguments.output, text, source=arguments.file)
    else:
        write_stdout(text)
    return _FOUND if arguments.fail and report.found else 0


def _written(report: LeakReport, arguments: argparse.Namespace, to_file: bool) -> str:
    if arguments.json:
        import json

        from vramlens.report.leaks_json import leaks_to_json

        return json.dumps(leaks_to_json(report), indent=2, allow_nan=False) + "\n"
    if arguments.markdown:
        from vramlens.report.leaks_markdown import leaks_to_markdown

        return leaks_to_markdown(report, arguments.top)
    from rich.console import Console

    from vramlens.report.leaks_text import render_leaks

    page = Page(None if to_file else sys.stdout)
    render_leaks(report, Console(file=page, width=_FILE_WIDTH if to_file else None), arguments.top)
    return page.getvalue()
