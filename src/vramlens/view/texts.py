"""Words in a page: texts stored once, each on one line, and findings and places as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from vramlens.analyses.finding import Place
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


class Found(Protocol):
    """What ``Finding`` and ``Difference`` have in common."""

    @property
    def verdict(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def place(self) -> Place | None: ...
    @property
    def evidence(self) -> Sequence[str]: ...
    @property
    def fix(self) -> str | None: ...


def finding_data(found: Found) -> dict[str, Any]:
    """The fields that every finding in a page has (viewer/src/data/header.ts)."""
    return {
        "verdict": found.verdict,
        "title": words(found.title),
        "place": place_data(found.place),
        "evidence": [words(sentence(text)) for text in found.evidence],
        "fix": words(sentence(found.fix)) if found.fix else None,
    }


def place_data(place: Place | None) -> dict[str, Any] | None:
    """A place as data."""
    if place is None:
        return None
    return {"file": one_line(place.file), "line": place.line, "function": one_line(place.function)}


def words(text: str) -> str:
    """A sentence as a page shows it: on one line, cut where it is too long to be read."""
    return one_line(text, _LONGEST_WORDS)
