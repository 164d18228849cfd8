"""The table of findings against docs/findings.md, and against what the code makes."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import vramlens
from support.recordings import DATA, data_of, read
from vramlens.analyses import scene as scene_module
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.ranking import that_matter, with_finding
from vramlens.analyses.findings.table import FROM_RECORDING, ROWS
from vramlens.analyses.recording_explanation import explain_text, explain_trace
from vramlens.ground.verdict import Verdict
from vramlens.read.oom_text import find_oom_messages
from vramlens.replay.explained import FROM_REPLAY

PAGE = Path(__file__).parents[3] / "docs" / "findings.md"
SOURCE = Path(vramlens.__path__[0])
EXPLAINED = {row.id for row in (*FROM_RECORDING, *FROM_REPLAY)}


def documented(heading: str) -> set[str]:
    """The ids in the first column of a section's table."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    first_cells = re.findall(r"^\| (`[^|]*)\|", section, re.MULTILINE)
    return {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)}


def literal_ids(folder: str) -> Iterator[str]:
    """The ids that modules give to findings."""
    for path in (SOURCE / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
                named = [keyword.value for keyword in node.keywords if keyword.arg == "id"]
                for argument in (*named, *node.args[:1]):
                    if isinstance(argument, ast.Constant):
                        yield argument.value


def test_every_row_has_its_place_in_the_page_and_the_other_way_round() -> None:
    assert documented("From a recording") == EXPLAINED


def test_every_finding_that_a_module_names_is_in_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    ids = {*literal_ids("analyses"), *literal_ids("replay")}
    assert len(ids) > 40
    assert {name for name in ids if f"`{name}`" not in page} == set()


def test_every_finding_that_the_page_names_is_in_the_code() -> None:
    folders = ("analyses/error_text", "analyses/profile")
    for heading, folder in zip(
        ("From an error's text", "From a trace of PyTorch's profiler"), folders, strict=True
    ):
        source = "".join(
            path.read_text(encoding="utf-8") for path in (SOURCE / folder).rglob("*.py")
        )
        assert {name for name in documented(heading) if name not in source} == set()


def test_every_finding_of_a_text_is_in_the_page() -> None:
    page = documented("From an error's text")
    texts = json.loads((DATA / "oom_messages.json").read_text(encoding="utf-8"))
    made = set()
    for text in texts_in(texts):
        for message in find_oom_messages(text.encode()):
            made |= {finding.id for finding in explain_text(message, "log").findings}
    assert len(made) > 10
    assert made - page == set()


def texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_in(inner)


def test_rows_stand_in_the_order_that_they_need() -> None:
    order = [row.id for row in FROM_RECORDING]
    assert len(set(order)) == len(order)
    for row in FROM_RECORDING:
        assert row.find is not None
        if row.takes_place_of:
            assert order.index(row.id) < order.index(row.takes_place_of)


def test_importances_are_told_apart() -> None:
    importances = [row.importance for row in ROWS.values() if row.importance is not None]
    assert sorted(importances) == list(range(len(importances)))


def test_a_scene_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("heap_at", "fragmentation_at", "failure_of", "leaks_at", "step_peaks"):
        original = getattr(scene_module, name)

        def counting(*given: object, name: str = name, original: object = original) -> object:
            calls.append(name)
            return original(*given)  # type: ignore[operator]

        monkeypatch.setattr(scene_module, name, counting)
    assert explain_trace(read(data_of("recordings/oom_train"))).findings
    assert sorted(calls) == [
        "failure_of", "fragmentation_at", "heap_at", "heap_at", "leaks_at", "step_peaks",
    ]  # fmt: skip


def finding(slug: str, size_bytes: int, fix: str | None = "do it") -> Finding:
    return Finding(id=slug, verdict=Verdict.LIKELY, title=slug, bytes=size_bytes, fix=fix)


def test_what_takes_a_place_stands_in_it_and_else_before_what_saves_less() -> None:
    most, unused, least = finding("a", 9), finding("unused_reserve", 5), finding("b", 1, None)
    saves = finding("settings_save", 4)
    assert with_finding((most, unused, least), saves, "unused_reserve") == (most, saves, least)
    assert with_finding((most, least), saves, "unused_reserve") == (most, saves, least)
    assert with_finding((most,), saves, "unused_reserve") == (most, saves)


def test_few_bytes_matter_where_the_row_says_so() -> None:
    few = [finding("leak", 1), finding("two_copies", 1), finding("two_copies", 1, None)]
    assert that_matter(few, ROWS, 2) == [few[0], few[2]]
