"""``vramlens ranks``: how the ranks of a job differ in memory, and why."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from vramlens.cli.arguments import add_forms, add_output
from vramlens.cli.message import say
from vramlens.cli.output import (
    as_text,
    drawn,
    fills_a_screen,
    goes_to_file,
    write_answer,
    write_file,
)
from vramlens.errors import UsageError, VramlensError
from vramlens.foreign_text import one_line
from vramlens.units import format_size

if TYPE_CHECKING:
    from vramlens.fleet import Lake
    from vramlens.ranks import Comparison

HELP = "Compare the ranks of a job: which one differs, why, and who failed first."
_TROUBLE = 1
_QUESTIONS = (
    "failing-causes-this-month",
    "worst-lines",
    "leaking-lines",
    "first-failures",
    "uneven-jobs",
    "slow-ranks",
)
EXAMPLES = (
    ("vramlens ranks runs/r1", "which rank differs, and why"),
    ("vramlens ranks lake/ --ask worst-lines", "over all jobs of a lake"),
    ("vramlens ranks runs/r1 --html ranks.html", "the same as an HTML page"),
    ("vramlens ranks runs/r1 --fail", "exit with 1 if a rank differs or failed"),
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``ranks``."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="the ranks' recordings, PyTorch snapshots and NCCL flight records, or folders of"
        " them; one recording of several GPUs is compared device by device; or a lake that"
        " 'vramlens export' wrote",
    )
    parser.add_argument("--run", metavar="ID", help="for a lake: which run (default: the only one)")
    parser.add_argument(
        "--attempt",
        type=int,
        metavar="N",
        help="which attempt, as the launcher counts restarts (default: the last)",
    )
    question = parser.add_mutually_exclusive_group()
    question.add_argument(
        "--sql",
        metavar="SELECT",
        help="query a lake with SQL: tables runs, ranks, findings, failures, lines, steps, "
        "stacks, collectives, events",
    )
    question.add_argument(
        "--ask",
        choices=_QUESTIONS,
        metavar="QUESTION",
        help=f"run a ready-made query on a lake: {', '.join(_QUESTIONS)}",
    )
    parser.add_argument(
        "--workers",
        metavar="WHERE",
        help="where to read the recordings: a number of processes, or dask://HOST:PORT",
    )
    parser.add_argument(
        "--fail",
        action="store_true",
        help="exit with 1 if a rank failed, a difference or a shared leak is proven or likely, or"
        " a rank cannot be judged",
    )
    add_forms(parser, "json")
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="also write an HTML page: one file, no scripts, no network access",
    )
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compares the ranks and writes the answer; 1 with ``--fail`` where there is trouble."""
    if arguments.sql is not None or arguments.ask is not None:
        _refuse_options_of_comparisons(arguments)
        _answer_question(arguments)
        return 0
    comparison = _compared(arguments)
    if arguments.html is not None:
        _write_page(comparison, arguments)
    text = drawn(comparison, arguments.format, arguments.output)
    is_unjudged = arguments.fail and not comparison.has_trouble and bool(comparison.unjudged)
    if is_unjudged:
        say(f"cannot tell whether all ranks are well: {'; '.join(comparison.unjudged)}")
    write_answer(text, arguments.output, _inputs(arguments.paths, arguments.output))
    return _TROUBLE if arguments.fail and (comparison.has_trouble or is_unjudged) else 0


def _refuse_options_of_comparisons(arguments: argparse.Namespace) -> None:
    if arguments.html is not None:
        raise UsageError("--html shows a comparison, not the result of a query")
    if arguments.fail:
        raise UsageError("--fail is about a comparison, not the result of a query")


def _compared(arguments: argparse.Namespace) -> Comparison:
    from vramlens.fleet import compare_files
    from vramlens.report.progress import reading_progress

    with reading_progress("reading") as progress:
        return compare_files(
            arguments.paths,
            progress,
            where=arguments.workers,
            run=arguments.run,
            attempt=arguments.attempt,
        )


def _write_page(comparison: Comparison, arguments: argparse.Namespace) -> None:
    from vramlens.report.ranks.ranks_page import comparison_to_html

    path = arguments.html
    page = comparison_to_html(comparison)
    write_file(path, page, _inputs(arguments.paths, path), option="--html")
    size = format_size(len(page.encode("utf-8", "replace")))
    say(f"{path}: {size}, written; open it in a browser")


def _inputs(paths: Sequence[str], output: str | None) -> list[str]:
    """What the output must not overwrite: files that were named, and those in folders that are part
    of the answer.

    Whatever else lies in the folder of a job, such as the answer of an earlier call, may be
    overwritten.
    """
    from pathlib import Path

    from vramlens.fleet import find_ranks, is_lake

    inputs = [path for path in paths if not os.path.isdir(path)]
    if not goes_to_file(output) or not os.path.isfile(
        output
    ):  # what is not there yet is not an input
        return inputs
    for folder in map(Path, filter(os.path.isdir, paths)):
        if is_lake(folder):
            inputs += map(str, folder.rglob("run=*/**/*"))
            continue
        with contextlib.suppress(VramlensError):
            find_ranks([output])  # raises where it is neither a recording nor a flight record
            inputs += map(str, folder.rglob("*"))
    return inputs


def _answer_question(arguments: argparse.Namespace) -> None:
    """Writes the answer to a question in SQL: JSON, a table on a terminal, else tab-separated
    lines.
    """
    from vramlens.cli.query_output import as_json_lines, as_tabbed_lines, spooled
    from vramlens.fleet import Lake, is_lake
    from vramlens.fleet.lake.ready_questions import sql_of

    if len(arguments.paths) != 1 or not is_lake(arguments.paths[0]):
        option = "--sql" if arguments.ask is None else "--ask"
        raise UsageError(
            f"{option} needs a lake: create one with vramlens export FOLDER --to LAKE/"
        )
    question = arguments.sql if arguments.ask is None else sql_of(arguments.ask)
    lake = Lake(arguments.paths[0], arguments.run, arguments.attempt)
    inputs = _inputs(arguments.paths, arguments.output)
    is_json = arguments.format == "json"
    if not is_json and fills_a_screen(arguments.output):
        text = _query_table(lake, question, arguments.ask)
        _say_notes(lake)
        write_answer(text, arguments.output, inputs)
        return
    lines = as_json_lines if is_json else as_tabbed_lines
    with spooled() as spool:
        lake.read_sql(question, lambda names, rows: spool.write_anew(lines(names, rows)))
        _say_notes(lake)
        write_answer(spool.parts(), arguments.output, inputs)


def _say_notes(lake: Lake) -> None:
    for note in lake.notes:
        say(one_line(note))


def _query_table(lake: Lake, question: str, asked: str | None) -> str:
    """The rows as a table for this terminal; ``asked`` is the question that was ready."""
    from vramlens.fleet.lake.ready_questions import QUESTIONS
    from vramlens.report.ranks.query_table import MOST_ROWS, QueryAnswer, render_query

    meaning = "" if asked is None else QUESTIONS[asked].meaning

    def first_rows(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> QueryAnswer:
        unread = iter(rows)
        shown = list(islice(unread, MOST_ROWS))
        return QueryAnswer(names, shown, meaning, more_rows=sum(1 for _ in unread))

    answer = lake.read_sql(question, first_rows)
    return as_text(lambda console: render_query(answer, console), to_file=False)
