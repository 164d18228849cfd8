"""The pages: short sentences, lines that an editor shows, links that lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import vramlens
from support.benchmark import benchmark

ROOT = Path(__file__).parents[2]
measured_prose = benchmark("prose")

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WORDS_PER_SENTENCE = 18
_CODE = re.compile(r"^```.*?^```|^    .*?$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]+)?\)")
_MADE_WITH_THE_SITE = ("live/example.html", "live/open.html")


def test_sentences_are_short_on_average() -> None:
    prose = [measured_prose.read(page) for page in PAGES]
    sentences = sum(len(page.sentences) for page in prose)
    assert sum(page.words for page in prose) / sentences < WORDS_PER_SENTENCE


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sentences_of_a_page_are_short_on_average(page: Path) -> None:
    assert measured_prose.read(page).words_per_sentence <= WORDS_PER_SENTENCE


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_begins_with_a_sentence(page: Path) -> None:
    """Not with commands or a table: a reader wants to know what it is for."""
    _, _, text = page.read_text(encoding="utf-8").partition("\n")
    assert re.match(r"\n*[*`\[-]*[A-Za-z]", text), text[:60]


def test_the_python_page_has_a_line_for_each_public_name() -> None:
    """Also where nothing fills in the directives: on GitHub, and in a clone."""
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^\| `(\w+)", page, re.MULTILINE))
    assert set(vramlens.__all__) - {"__version__"} - described == set()


def test_the_navigation_names_a_page_once() -> None:
    pages = re.findall(r"\S+\.md$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert [page for page in sorted(set(pages)) if pages.count(page) > 1] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_fit_an_editor(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    long_lines = [
        number
        for number in measured_prose.read(page).long_lines
        if not lines[number - 1].startswith("|")
    ]
    assert long_lines == [], f"over {measured_prose.LONGEST_LINE} characters"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    lost = []
    for match in _LINK.finditer(text):
        link = match[1]
        if ":" in link or link.endswith(_MADE_WITH_THE_SITE):
            continue
        if not (page.parent / link).exists():
            lost.append(link)
    assert lost == []
