"""A finding in a page, whoever found it: an analysis of one recording, or what compares the
ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from vramlens.analyses.finding import Place
from vramlens.report.wording import sentence
from vramlens.view.texts import one_line

_LONGEST_WORDS = 500
"""Characters of a sentence: with a name in it that is longer, the verdict would hide behind that
name.
"""


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
