"""Mistyped words: the verb, the file or the option that was probably meant."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

_ALIKE = 0.7
_LONGEST = 40


def looks_like_a_file(word: str, verbs: Sequence[str]) -> bool:
    """True for a word that stands where a verb should, and names a file."""
    if word in verbs or word.startswith("-"):
        return False
    return "." in word or "/" in word or os.sep in word or os.path.lexists(word)


def verb_meant(word: str, verbs: Sequence[str]) -> str | None:
    """The verb that a mistyped word is close to; None for a verb, an option, and what is like
    none of them.
    """
    if word in verbs or word.startswith("-"):
        return None
    return _closest(word.lower(), verbs)


def option_meant(words: Sequence[str], options: Iterable[str]) -> str | None:
    """The option that the first mistyped one among the words is close to."""
    names = [option[2:] for option in options if option.startswith("--")]
    for word in words:
        if word.startswith("--"):
            meant = _closest(word[2:].partition("=")[0].lower(), names)
            if meant is not None:
                return f"--{meant}"
    return None


def _closest(word: str, candidates: Sequence[str]) -> str | None:
    from difflib import get_close_matches

    letters = sorted(word)
    swapped = [candidate for candidate in candidates if sorted(candidate) == letters]
    return next(iter(swapped or get_close_matches(word[:_LONGEST], candidates, 1, _ALIKE)), None)
