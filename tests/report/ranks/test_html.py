"""The page of ``vramlens ranks --html``: whole, without scripts, and safe whatever names are in
the recordings.
"""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from support.recordings import DATA, data_of, read
from vramlens.analyses.finding import Place
from vramlens.cli.main import main
from vramlens.ranks import compare, summarise
from vramlens.report.ranks.ranks_page import comparison_to_html
from vramlens.trace.rank_error import RankError

HOSTILE = "</title><script>alert(1)</script>\"'><img src=x onerror=y>\x1b[31m\u202e"


class Page(HTMLParser):
    """What is in a page: its tags, the open ones, and whatever would load or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.active: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)
        self.active += (
            [tag] if tag in ("script", "img", "iframe", "link", "object", "a", "form") else []
        )
        self.active += [
            name for name, _ in attrs if name.startswith("on") or name in ("src", "href")
        ]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_of_a_real_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ranks", str(DATA / "ranks/leak_rank1"), "--html", str(tmp_path / "x.html")]) == 0
    assert "Rank 1" in capsys.readouterr().out
    text = (tmp_path / "x.html").read_text()
    page = Page(text)
    assert page.open == []
    assert page.active == []
    assert page.tags.count("rect") == 16
    assert "train/multi.py:46" in text
    assert "Fix: " in text


def test_names_cannot_become_markup() -> None:
    one = summarise(read(data_of("recordings/gpt_annotated")), 0)
    line = replace(
        one.lines[0], place=Place(HOSTILE, 1, HOSTILE), peak_bytes=1 << 27, at_peak_bytes=1 << 27
    )
    odd = replace(
        one,
        rank=1,
        source=HOSTILE,
        lines=(line, *one.lines),
        peak_requested_bytes=one.peak_requested_bytes + (1 << 27),
    )
    error = RankError(HOSTILE, HOSTILE, 1, (), False)
    found = compare([replace(one, source=HOSTILE), odd], errors={0: error}, notes=[HOSTILE])
    assert found.differences
    text = comparison_to_html(found)
    page = Page(text)
    assert (page.open, page.active) == ([], [])
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_many_ranks_stay_a_page() -> None:
    one = summarise(read(data_of("recordings/gpt_annotated")), 0)
    many = [replace(one, rank=rank, step_peaks=one.step_peaks * 500) for rank in range(2_000)]
    text = comparison_to_html(compare(many))
    assert len(text) < 4_000_000
    assert "… and 1,800 more ranks (vramlens ranks --json shows them)" in text


def test_sql_has_no_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["ranks", str(tmp_path), "--sql", "SELECT 1", "--html", "x.html"]) == 2
    assert "--html" in capsys.readouterr().err
