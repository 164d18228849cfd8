"""What mkdocs adds to the pages: every command's help, a live page, and the files that pages link to.

mkdocs calls these functions by their names (mkdocs.yml, ``hooks``).
"""

from __future__ import annotations

import os
import posixpath
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))
_LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?(\))")
_GUIDES = "Guides"
_WIDTH = "80"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The settings, with every page that the navigation forgot among the guides."""
    named = set(_pages(config.nav))
    folder = Path(config.docs_dir)
    pages = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.md"))
    guides = next(part[_GUIDES] for part in config.nav or [] if _GUIDES in part)
    guides += [page for page in pages if page not in named]
    return config


def _pages(nav: Any) -> list[str]:
    """The pages that a part of the navigation names."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav or []
    return [page for part in parts for page in _pages(part)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files, with the generated pages and those outside of docs/ that a page links to."""
    files.append(File.generated(config, "reference/commands.md", content=commands()))
    files.append(File.generated(config, "live/example.html", content=_live_page()))
    files.append(File.generated(config, "live/open.html", content=_file_opener()))
    for outside in sorted(_linked_outside(Path(config.docs_dir))):
        content = (ROOT / outside).read_bytes()
        files.append(File.generated(config, _shown_at(outside), content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A page's text, with links that leave docs/ led to the copies."""
    source = posixpath.dirname(page.file.src_uri)

    def led(match: re.Match[str]) -> str:
        outside = _outside(source, match[2])
        if outside is None:
            return match[0]
        target = posixpath.relpath(_shown_at(outside), source or ".")
        return f"{match[1]}{target}{match[4]}"

    return _LINK.sub(led, markdown)


def _linked_outside(folder: Path) -> set[str]:
    """The repository's files outside of docs/ that pages link to, relative to its root."""
    linked = set()
    for path in folder.rglob("*.md"):
        source = path.relative_to(folder).parent.as_posix()
        for match in _LINK.finditer(path.read_text(encoding="utf-8")):
            outside = _outside("" if source == "." else source, match[2])
            if outside is not None:
                linked.add(outside)
    return linked


def _outside(source: str, link: str) -> str | None:
    """The file outside of docs/ that a link in a folder of docs/ means; None where it stays."""
    if ":" in link:
        return None
    path = posixpath.normpath(posixpath.join("docs", source, link))
    if path.startswith(("docs/", "..")):
        return None
    if (ROOT / path).is_dir():
        path = posixpath.join(path, "README.md")
    return path


def _shown_at(outside: str) -> str:
    """Where the site has a copy of a file; text that a browser would download is shown."""
    suffix = "" if outside.endswith((".html", ".txt", ".png", ".svg", ".json")) else ".txt"
    return f"files/{outside}{suffix}"


def commands() -> str:
    """The page of all commands, from the parser."""
    from vramlens.cli.main import VERBS, parser

    os.environ["COLUMNS"] = _WIDTH
    whole = parser()
    actions = [action for action in whole._actions if action.dest == "verb"]
    by_verb = actions[0].choices
    assert isinstance(by_verb, dict)
    parts = [
        "# Commands",
        "`vramlens VERB --help` prints the same text.",
        f"```text\n{whole.format_help().strip()}\n```",
    ]
    for verb in VERBS:
        parts.append(f"## {verb}")
        parts.append(f"```text\n{by_verb[verb].format_help().strip()}\n```")
    return "\n\n".join(parts) + "\n"


def _file_opener() -> str:
    """The page onto which recordings are dropped."""
    from vramlens.view.file_opener import file_opener_page

    return file_opener_page()


def _live_page() -> str:
    """The page that ``vramlens view -o`` writes about the example that ships with vramlens."""
    from vramlens.api import example_path
    from vramlens.cli.main import main

    with tempfile.TemporaryDirectory() as folder:
        page = os.path.join(folder, "example.html")
        main(["view", str(example_path()), "-o", page, "--no-sources"])
        return Path(page).read_text(encoding="utf-8")
