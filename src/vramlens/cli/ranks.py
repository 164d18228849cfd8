"""``vramlens ranks``: how the ranks of a job differ in memory, and why."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from vramlens.cli.output import Page, write_file, write_stdout
from vramlens.errors import UsageError

if TYPE_CHECKING:
    from vramlens.ranks import Comparison

HELP = "Compare the ranks of a job: which one differs, why, and who failed first."
_FILE_WIDTH = 100


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``ranks``."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="the ranks' recordings, PyTorch snapshots and NCCL flight records, or folders of them; one recording of"
        " several GPUs is compared device by device; or a lake that 'vramlens export' wrote",
    )
    parser.add_argument("--run", metavar="ID", help="of a lake, which run (default: the only one)")
    parser.add_argument("--sql", metavar="SELECT", help="ask a lake in SQL: tables ranks, lines, steps, events, stacks")
    parser.add_argument(
        "--workers", metavar="WHERE", help="what reads the recordings: a number of processes, or dask://HOST:PORT"
    )
    parser.add_argument("--json", action="store_true", help="print data: one JSON object")
    parser.add_argument("--html", metavar="FILE", help="also write a page: one file, no script, nothing from a network")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to a file instead of standard output")


def run(arguments: argparse.Namespace) -> int:
    """Compares the ranks and writes the answer."""
    from vramlens.fleet import compare_files
    from vramlens.report.progress import reading_progress

    if arguments.sql is not None:
        if arguments.html is not None:
            raise UsageError("--html shows a comparison, not an answer in SQL")
        text = _answered(arguments)
    else:
        with reading_progress("reading") as progress:
            found = compare_files(arguments.paths, progress, where=arguments.workers, run=arguments.run)
        if arguments.html is not None:
            from vramlens.report.ranks_html import comparison_to_html

            write_file(arguments.html, comparison_to_html(found))
        text = written(found, as_json=arguments.json, to_file=arguments.output not in (None, "-"))
    if arguments.output in (None, "-"):
        write_stdout(text)
    else:
        write_file(arguments.output, text)
    return 0


def _answered(arguments: argparse.Namespace) -> str:
    """The answer to a question in SQL: tab-separated lines, or JSON."""
    from vramlens.fleet import Lake, is_lake

    if len(arguments.paths) != 1 or not is_lake(arguments.paths[0]):
        raise UsageError("--sql asks a lake: make one with vramlens export FOLDER --to LAKE/")
    names, rows = Lake(arguments.paths[0], arguments.run).sql(arguments.sql)
    if arguments.json:
        import json

        found = {"schema": "vramlens/1", "columns": names, "rows": rows}
        return json.dumps(found, indent=2, default=str, allow_nan=False) + "\n"
    return "".join("\t".join(map(str, row)) + "\n" for row in (names, *rows))


def written(found: Comparison, *, as_json: bool, to_file: bool) -> str:
    """The comparison as text for this terminal or a file, or as JSON."""
    if as_json:
        import json

        from vramlens.report.ranks_json import comparison_to_json

        return json.dumps(comparison_to_json(found), indent=2, allow_nan=False) + "\n"
    from rich.console import Console

    from vramlens.report.ranks import render_comparison

    page = Page(None if to_file else sys.stdout)
    render_comparison(found, Console(file=page, width=_FILE_WIDTH if to_file else None))
    return page.getvalue()
