"""Words in a page: texts stored once, each on one line, and findings and places as data."""

from __future__ import annotations

from typing import Any

from vramlens.analyses.finding import Finding, Place
from vramlens.report.wording import sentence, visible

_LONGEST = 2000
_LONGEST_WORDS = 500
"""Characters of a sentence: with a name in it that is longer, the verdict would hide behind that
name.
"""


def one_line(text: str, longest: int = _LONGEST) -> str:
    """The text on one line, cut where it is longer than any name or sentence."""
    shown = visible(text[:longest])  # may be longer: what does not print becomes an escape
    return shown if len(text) <= longest >= len(shown) else f"{shown[:longest]}…"


class Texts:
    """Numbers for texts, in the order in which they are first met."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The number of a text; very long ones are cut, and control characters made visible."""
        return self._numbers.setdefault(one_line(text), len(self._numbers))

    @property
    def all(self) -> list[str]:
        """Every text, in order of number."""
        return list(self._numbers)


def finding_data(finding: Finding) -> dict[str, Any]:
    """The fields that every finding in a page has (viewer/src/data/header.ts)."""
    return {
        "verdict": finding.verdict,
        "title": words(finding.title),
        "place": place_data(finding.place),
        "evidence": [words(sentence(text)) for text in finding.evidence],
        "fix": words(sentence(finding.fix)) if finding.fix else None,
    }


def place_data(place: Place | None) -> dict[str, Any] | None:
    """A place as data."""
    if place is None:
        return None
    return {"file": one_line(place.file), "line": place.line, "function": one_line(place.function)}


def words(text: str) -> str:
    """A sentence as a page shows it: on one line, cut where it is too long to be read."""
    return one_line(text, _LONGEST_WORDS)
