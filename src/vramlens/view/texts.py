"""Texts in a page: each stored once, as one line that shows what it holds."""

from __future__ import annotations

from vramlens.report.wording import visible

_LONGEST = 2000


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
