"""A closed vocabulary: an enumeration whose members are the very strings that JSON carries."""

from __future__ import annotations

from enum import Enum


class ClosedWords(str, Enum):
    """Strings of which there are no others; the order of definition is the order of rank.

    (``enum.StrEnum`` exists from Python 3.11 on.)
    """

    __str__ = str.__str__

    @property
    def rank(self) -> int:
        """The place among its like, from 0."""
        return list(type(self)).index(self)
