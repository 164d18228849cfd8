"""``vramlens tune``: which allocator settings are worth having for a recorded run."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from vramlens.cli.output import Page
from vramlens.cli.replay import _FILE_WIDTH, add_common, limit_size, write

if TYPE_CHECKING:
    from vramlens.replay import Tuning

HELP = "Try the allocator settings worth trying on a recording, and name the best."


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``tune``."""
    parser.add_argument("file", metavar="FILE", help="a recording or a PyTorch memory snapshot; - reads standard input")
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument(
        "--cap",
        type=limit_size,
        metavar="SIZE",
        help="what the process may reserve, as set_per_process_memory_fraction limits it (default: what it could)",
    )
    limit.add_argument(
        "--cards",
        type=_sizes,
        default=[],
        metavar="SIZE,SIZE",
        help="card sizes: on which of them the run fits, with each setting",
    )
    parser.add_argument(
        "--conf", action="append", default=[], metavar="SETTINGS", help="settings to try beside the usual ones"
    )
    parser.add_argument("--all", action="store_true", help="show every setting that was tried")
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Tunes one file and writes the answer."""
    from vramlens import api
    from vramlens.replay import WORTH_TRYING, tune_trace
    from vramlens.report.progress import reading_progress

    with reading_progress("reading") as progress:
        recording = api.load(arguments.file, progress=progress)
    with reading_progress("trying settings") as progress:
        tuning = tune_trace(
            recording,
            cap_bytes=arguments.cap,
            cards=arguments.cards,
            confs=(*WORTH_TRYING, *arguments.conf),
            recorded_cap_bytes=arguments.recorded_cap,
            device=arguments.device,
            progress=progress,
        )
    write(arguments, _written(tuning, arguments))
    return 0


def _written(tuning: Tuning, arguments: argparse.Namespace) -> str:
    if arguments.json:
        import json

        from vramlens.report.replay_json import tuning_to_json

        return json.dumps(tuning_to_json(tuning), indent=2, allow_nan=False) + "\n"
    from rich.console import Console

    from vramlens.report.tune import render_tuning

    to_file = arguments.output not in (None, "-")
    page = Page(None if to_file else sys.stdout)
    console = Console(file=page, width=_FILE_WIDTH if to_file else None)
    render_tuning(tuning, console, whole=arguments.all or to_file)
    return page.getvalue()


def _sizes(text: str) -> list[int]:
    return [limit_size(one) for one in text.split(",")]
