"""``vramlens diff``: what changed between two recordings, and whether a fix did what it should."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence

from vramlens.cli.arguments import add_device, add_forms, add_output, positive
from vramlens.cli.message import say
from vramlens.cli.output import drawn, write_answer
from vramlens.errors import UsageError
from vramlens.foreign_text import one_line

HELP = "Show what changed between two recordings: failures, growth, peak and lines."
EXAMPLES = (
    ("vramlens diff before.vram after.vram", "what changed between two runs"),
    ("vramlens diff before.vram after.vram --fail", "exit with 1 if it got worse"),
    ("vramlens diff runs/before runs/after", "what changed between two runs of a job"),
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``diff``."""
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="the recording, or the folder of a job, before and after the change",
    )
    parser.add_argument(
        "--before",
        nargs="+",
        default=[],
        metavar="FILE",
        help="several recordings from before, to measure the noise",
    )
    parser.add_argument(
        "--after", nargs="+", default=[], metavar="FILE", help="one or more recordings from after"
    )
    add_device(parser)
    parser.add_argument(
        "--top", type=positive, default=10, metavar="N", help="how many lines to show (default: 10)"
    )
    parser.add_argument(
        "--fail",
        action="store_true",
        help="exit with 1 if it got worse: it fails now, the peak rose, it grows, or that is"
        " unknown",
    )
    parser.add_argument(
        "--tolerance",
        metavar="SIZE|SHARE",
        help="how much the peak may rise with --fail: 64MiB, 2%% (default: 0)",
    )
    add_forms(parser, "json", "markdown", "html")
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compares the recordings and writes the answer; 1 with ``--fail`` where it is worse."""
    from vramlens.questions import compared
    from vramlens.report.progress import reading_progress

    before, after = _sides(arguments)
    if arguments.tolerance is not None and not arguments.fail:
        raise UsageError("--tolerance needs --fail")
    allowed = _tolerance(arguments.tolerance)
    _refuse_mixed(before, after)
    diff = compared(before, after, arguments.device, reading_progress)
    text = drawn(diff, arguments.format, arguments.output, top=arguments.top)
    worse = (
        diff.worse(allowed(diff.counters["allocated"].before_bytes), allowed)
        if arguments.fail
        else ()
    )
    unjudged = diff.unjudged if arguments.fail and not worse else ()
    if unjudged:
        say(f"cannot tell whether it is worse: {one_line('; '.join(unjudged))}")
    write_answer(text, arguments.output, (*before, *after))
    if worse:
        say(f"worse than before: {'; '.join(worse)}")
    return 1 if worse or unjudged else 0


def _refuse_mixed(before: Sequence[str], after: Sequence[str]) -> None:
    """Raises UsageError where a folder stands beside something else."""
    is_folder = [os.path.isdir(path) for path in (*before, *after)]
    if any(is_folder) and not (all(is_folder) and len(before) == len(after) == 1):
        raise UsageError(
            "diff of a job takes two folders, one per side: vramlens diff runs/before runs/after"
        )


def _sides(arguments: argparse.Namespace) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The files before and those after."""
    files, before, after = arguments.files, arguments.before, arguments.after
    if len(files) == 2 and not before and not after:
        return (files[0],), (files[1],)
    if before and after and not files:
        return tuple(before), tuple(after)
    raise UsageError(
        "diff takes two recordings: vramlens diff before.vram after.vram; with repeated runs:"
        " vramlens diff --before a.vram b.vram --after c.vram d.vram"
    )


def _tolerance(text: str | None) -> Callable[[int], int]:
    from vramlens.units import parse_tolerance

    try:
        return parse_tolerance(text or "0")
    except UsageError as error:
        raise UsageError(f"--tolerance {error}") from None
