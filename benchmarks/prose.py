"""Prints, for each page of documentation, words a sentence and lines over 120 characters.

    python benchmarks/prose.py                 # README.md and docs/
    python benchmarks/prose.py docs/faq.md     # some pages

Code, tables, links' targets and headings are not prose. A list's item is a sentence of its own.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONGEST_LINE = 120
_CODE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"^\s*([-*]|\d+\.)\s+")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_END = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_`A-Z0-9])")


@dataclass(frozen=True)
class Prose:
    """One page's sentences and lines."""

    sentences: tuple[str, ...]
    long_lines: tuple[int, ...]

    @property
    def words(self) -> int:
        return sum(len(sentence.split()) for sentence in self.sentences)

    @property
    def words_per_sentence(self) -> float:
        return self.words / max(1, len(self.sentences))


def read(page: Path) -> Prose:
    """The prose of a page; the numbers of its lines that are too long."""
    text = page.read_text(encoding="utf-8")
    lines = text.splitlines()
    long_lines = tuple(
        number for number, line in enumerate(lines, start=1) if len(line) > LONGEST_LINE
    )
    return Prose(tuple(_sentences(text)), long_lines)


def _sentences(text: str) -> list[str]:
    found = []
    for paragraph in _paragraphs(_CODE.sub("", text)):
        plain = _LINK.sub(r"\1", paragraph)
        found += [part for part in _END.split(plain) if re.search(r"[A-Za-z]{2}", part)]
    return found


def _paragraphs(text: str) -> list[str]:
    """Paragraphs and list items, each on one line."""
    paragraphs: list[str] = []
    goes_on = False
    for line in text.splitlines():
        is_item = _ITEM.match(line) is not None
        is_code = line.startswith("    ") and not goes_on
        if not line.strip() or is_code or line.lstrip().startswith(("#", "|", "!!!", "<", ":::")):
            goes_on = False
            continue
        words = _ITEM.sub("", line).strip()
        if goes_on and not is_item:
            paragraphs[-1] += " " + words
        else:
            paragraphs.append(words)
        goes_on = True
    return paragraphs


def main(arguments: list[str]) -> None:
    """Prints one line a page, and the whole."""
    pages = [Path(argument) for argument in arguments] or [
        ROOT / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
    prose = {page: read(page) for page in pages}
    print(f"{'words':>6} {'sentences':>9} {'words each':>10} {'long lines':>10}")
    for page, measured in prose.items():
        name = page.resolve().relative_to(ROOT) if page.resolve().is_relative_to(ROOT) else page
        print(
            f"{measured.words:6} {len(measured.sentences):9} {measured.words_per_sentence:10.1f} "
            f"{len(measured.long_lines):10}  {name}"
        )
    words = sum(measured.words for measured in prose.values())
    sentences = sum(len(measured.sentences) for measured in prose.values())
    print(f"{words:6} {sentences:9} {words / max(1, sentences):10.1f}             all")


if __name__ == "__main__":
    main(sys.argv[1:])
