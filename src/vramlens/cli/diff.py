"""``vramlens diff``: what changed between two recordings, and whether a fix did what it should."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from vramlens.cli.explain import _positive as positive
from vramlens.cli.explain import device
from vramlens.cli.output import Page, write_file, write_stdout
from vramlens.errors import UsageError

if TYPE_CHECKING:
    from vramlens.analyses.diff import Diff
    from vramlens.analyses.run import Run

HELP = "Say what changed between two recordings: the failure, the growth, the peak, the lines."
_FILE_WIDTH = 100


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``diff``."""
    parser.add_argument("files", nargs="*", metavar="FILE", help="the recording before, and the one after")
    parser.add_argument(
        "--before", nargs="+", default=[], metavar="FILE", help="several recordings before: they tell the noise"
    )
    parser.add_argument("--after", nargs="+", default=[], metavar="FILE", help="one or several recordings after")
    parser.add_argument(
        "--device", type=device, metavar="N", help="the device, 0 or cuda:0 (default: the one that holds most)"
    )
    parser.add_argument("--top", type=positive, default=10, metavar="N", help="how many lines to show (default: 10)")
    parser.add_argument(
        "--fail", action="store_true", help="exit with 1 if it is worse: it fails now, the peak rose, or it grows"
    )
    parser.add_argument(
        "--tolerance", metavar="SIZE|SHARE", help="what --fail lets the peak rise by: 64MiB, 2%% (default: nothing)"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print data: one JSON object")
    form.add_argument("--markdown", action="store_true", help="print Markdown, for an issue or a pull request")
    form.add_argument("--html", action="store_true", help="print a page, without scripts")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to a file instead of standard output")


def run(arguments: argparse.Namespace) -> int:
    """Compares the recordings and writes the answer; 1 with ``--fail`` where it is worse."""
    from vramlens.analyses.diff import diff_runs

    before, after = _sides(arguments)
    if arguments.tolerance is not None and not arguments.fail:
        raise UsageError("--tolerance is for --fail")
    allowed = _tolerance(arguments.tolerance)
    diff = diff_runs(
        [read_run(path, arguments.device) for path in before], [read_run(path, arguments.device) for path in after]
    )
    text = _written(diff, arguments)
    write(arguments.output, text, (*before, *after))
    worse = diff.worse(allowed(diff.counters["allocated"].before_bytes)) if arguments.fail else ()
    if worse:
        print(f"vramlens: worse than before: {'; '.join(worse)}", file=sys.stderr)
    return 1 if worse else 0


def read_run(path: str, device: int | None = None) -> Run:
    """One recording, ready to be compared.

    Raises:
        InputError, UsageError: as for ``vramlens.load``.
    """
    from vramlens import api
    from vramlens.analyses.run import run_of
    from vramlens.report.progress import reading_progress

    with reading_progress("reading") as progress:
        recording = api.load(path, progress=progress)
    return run_of(recording, device)


def write(output: str | None, text: str, inputs: tuple[str, ...]) -> None:
    """Writes the answer where it was asked for, never over what it was made from."""
    if output in (None, "-"):
        write_stdout(text)
        return
    for path in inputs:
        if os.path.exists(output) and os.path.exists(path) and os.path.samefile(output, path):
            raise UsageError(f"-o {output}: is the input itself; name another file")
    write_file(output, text)


def _sides(arguments: argparse.Namespace) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The files before and those after."""
    files, before, after = arguments.files, arguments.before, arguments.after
    if len(files) == 2 and not before and not after:
        return (files[0],), (files[1],)
    if before and after and not files:
        return tuple(before), tuple(after)
    raise UsageError(
        "diff takes two recordings: vramlens diff before.vram after.vram; with repeated runs: vramlens diff --before"
        " a.vram b.vram --after c.vram d.vram"
    )


def _tolerance(text: str | None) -> Callable[[int], int]:
    from vramlens.analyses.tolerance import parse_tolerance

    try:
        return parse_tolerance(text or "0")
    except UsageError as error:
        raise UsageError(f"--tolerance {error}") from None


def _written(diff: Diff, arguments: argparse.Namespace) -> str:
    if arguments.json:
        import json

        from vramlens.report.diff_json import diff_to_json

        return json.dumps(diff_to_json(diff), indent=2, allow_nan=False) + "\n"
    if arguments.markdown:
        from vramlens.report.diff_markdown import diff_to_markdown

        return diff_to_markdown(diff, arguments.top)
    if arguments.html:
        from vramlens.report.diff_html import diff_to_html

        return diff_to_html(diff, arguments.top)
    from rich.console import Console

    from vramlens.report.diff import render_diff

    to_file = arguments.output not in (None, "-")
    page = Page(None if to_file else sys.stdout)
    render_diff(diff, Console(file=page, width=_FILE_WIDTH if to_file else None), arguments.top)
    return page.getvalue()
