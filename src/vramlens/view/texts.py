"""Texts in a page: each stored once, as one line that shows what it holds."""

from __future__ import annotations

from vramlens.report.wording import visible

_LONGEST = 2000


class Texts:
    """Numbers for texts, in the order in which they are first met."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The number of a text; very long ones are cut, and control characters made visible."""
        shown = visible(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
        return self._numbers.setdefault(shown, len(self._numbers))

    @property
    def all(self) -> list[str]:
        """Every text, in order of number."""
        return list(self._numbers)
