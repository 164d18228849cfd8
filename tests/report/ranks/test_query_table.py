"""The rows of a query, as a person at a terminal sees them."""

from __future__ import annotations

import io
from datetime import datetime
from pathlib import Path

import pytest
from rich.console import Console

from support.recordings import DATA
from vramlens.cli.main import main
from vramlens.report.ranks.query_table import QueryAnswer, render_query


def shown(answer: QueryAnswer, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    render_query(answer, console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


LINES = QueryAnswer(
    ("file", "line", "function", "jobs", "most_bytes_at_peak"),
    [("train/model.py", 39, "forward", 3, 671350784), ("train/loss.py", 7, "", 12, 0)],
    "the lines that hold most",
)


def test_a_ready_question_says_what_it_answers_and_names_each_line() -> None:
    assert shown(LINES).splitlines() == [
        "The lines that hold most:",
        "",
        "  jobs  most at peak  line",
        "     3    640.25 MiB  train/model.py:39 in forward",
        "    12       0 bytes  train/loss.py:7",
    ]


def test_without_room_a_name_stands_above_its_figures() -> None:
    long = "a_function_with_a_rather_long_name_for_a_screen"
    answer = QueryAnswer(LINES.names, [("train/model.py", 39, long, 3, 512)])
    lines = shown(answer, 60).splitlines()
    assert lines[-2:] == [f"  train/model.py:39 in {long}", "       3           512 bytes"]


def test_a_row_that_is_too_wide_becomes_a_block_without_what_is_empty() -> None:
    names = ("run", "host", "peak_reserved_bytes", "step_time_us", "started_at", "note")
    row = ("r1" * 20, None, 2340421632, 18046, datetime(2026, 11, 23, 9, 5), "x" * 20)
    lines = shown(QueryAnswer(names, [row])).splitlines()
    assert lines[0] == "  row 1"
    assert "host" not in "".join(lines)
    assert "  peak_reserved_bytes  2.18 GiB" in lines
    assert "  step_time_us         18.0 ms" in lines
    assert "  started_at           2026-11-23 09:05:00" in lines


def test_what_a_screen_leaves_out_is_counted() -> None:
    text = shown(QueryAnswer(("rank",), [(rank,) for rank in range(100)]))
    assert text.splitlines()[-1] == "  … and 60 more rows (--json shows them)"


def test_no_rows_are_said() -> None:
    assert shown(QueryAnswer(("rank",), [])) == "No rows.\n"


def test_a_pipe_gets_exact_values_and_a_terminal_units(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("duckdb")
    lake = f"{tmp_path / 'lake'}/"
    assert main(["export", str(DATA / "ranks" / "leak_rank1"), "--to", lake]) == 0
    question = ["ranks", lake, "--ask", "leaking-lines"]
    capsys.readouterr()
    assert main(question) == 0
    assert capsys.readouterr().out == (
        "file\tline\tfunction\tjobs\tmost_bytes\ntrain/multi.py\t46\tafter\t1\t416526360\n"
    )
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(question) == 0
    assert "397.23 MiB  train/multi.py:46 in after" in capsys.readouterr().out
