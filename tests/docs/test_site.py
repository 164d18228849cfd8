"""The built site: strict, and nothing in it is loaded from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason='the extra "docs" is not installed')
pytest.importorskip("material", reason='the extra "docs" is not installed')
pytest.importorskip("mkdocstrings", reason='the extra "docs" is not installed')

ROOT = Path(__file__).parents[2]
_FOREIGN = re.compile(r"^(https?:)?//")
_IN_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""")
_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
_NAMES_ONLY = ("canonical", "next", "prev", "alternate")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


class Loaded(HTMLParser):
    """What a page has its browser load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "link" and attributes.get("rel") in _NAMES_ONLY:
            return
        address = attributes.get(_LOADED.get(tag, ""))
        if address:
            self.addresses.append(address)


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    foreign = {}
    for path in site.rglob("*"):
        if path.suffix not in (".html", ".css", ".svg"):
            continue
        text = path.read_text(encoding="utf-8")
        addresses = _IN_STYLE.findall(text)
        if path.suffix == ".html":
            addresses += Loaded(text).addresses
        found = [address for address in addresses if _FOREIGN.match(address)]
        if found:
            foreign[str(path.relative_to(site))] = found
    assert foreign == {}


def test_what_would_make_the_theme_load_something_is_not_there(site: Path) -> None:
    """The theme asks GitHub for a repository's figures, and loads Mermaid for its diagrams."""
    assert "repo_url" not in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [path.read_text(encoding="utf-8") for path in site.rglob("*.html")]
    assert [page for page in pages if 'class="mermaid"' in page] == []


def test_every_command_and_every_name_has_its_place(site: Path) -> None:
    import vramlens
    from vramlens.cli.main import VERBS

    commands = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    assert [verb for verb in VERBS if f'id="{verb}"' not in commands] == []
    python = (site / "reference" / "python.html").read_text(encoding="utf-8")
    names = [name for name in vramlens.__all__ if name != "__version__"]
    homes = ("vramlens", "vramlens.questions")  # where parts of the package have a verb's name
    described = {name for name in names for home in homes if f'id="{home}.{name}"' in python}
    assert set(names) - described == set()


def test_the_live_page_is_one_that_view_writes(site: Path) -> None:
    page = (site / "live" / "example.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page
