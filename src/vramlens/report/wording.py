"""Words: how the reports write sizes, shares, counts, places and text that came with the input."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Protocol

from vramlens.foreign_text import one_line
from vramlens.foreign_text import visible as visible  # every report takes it from here
from vramlens.ground.place import base_name
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_STEP_MARKS = {
    "profiler steps": "the profiler's steps",
    "optimizer marks": "the optimizer's calls",
    "optimizer frames": "the optimizer's calls",
    "repeating pattern": "requests that repeat",
}
"""How steps were found, in a reader's words; other sources are words of the user's own."""


class Location(Protocol):
    """Anything with a file, a line and a function: a Place or a Frame."""

    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def function(self) -> str: ...


def quoted(source: str) -> str:
    """A file's name as a shell takes it, and a terminal."""
    return shlex.quote(one_line(f"./{source}" if source.startswith("-") else source))


def share(part: int, whole: int) -> str:
    """How much of the whole, in percent; never 0% of something, nor 100% of less than all."""
    if whole <= 0:
        return ""
    rounded = round(100 * part / whole)
    if part > 0 and rounded == 0:
        return "<1%"
    if part < whole and rounded == 100:
        return ">99%"
    return f"{rounded}%"


def and_more(count: int, noun: str, option: str, *, detail: str = "") -> str:
    """``… and 3 more settings (--all shows them)``: rows that are left out, and what shows them.

    Args:
        noun: of one row; "" where the list is of whatever stands above.
        option: what shows them; "" where nothing does.
        detail: what they come to together.
    """
    is_one = count == 1
    text = f"… and {count:,} more"
    if noun:
        text += f" {noun if is_one else _plural(noun)}"
    if detail:
        text += f", {detail}"
    if option:
        text += f" ({option} shows {'it' if is_one else 'them'})"
    return text


def _plural(noun: str) -> str:
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"


def steps_found_by(step_source: str) -> str:
    """How a recording's steps were found, after a comma."""
    return f"found by {_STEP_MARKS.get(step_source, step_source)}"


def plain(name: str) -> str:
    """A category's or phase's name as people say it."""
    return visible(name.replace("_", " "))


def place_name(place: Location) -> str:
    """``train/model.py:39 in forward``; without the line or function where they are not known."""
    return visible(place.file) + _line_and_function(place)


def at_place(place: Location | None) -> str:
    """The end of a sentence that says where: `` at train/model.py:39 in forward``; "" where that is
    not known.
    """
    return f" at {place_name(place)}" if place is not None else ""


def short_place_name(place: Location) -> str:
    """``model.py:39 in forward``: the last part of the path only."""
    return visible(base_name(place.file) or place.file) + _line_and_function(place)


def _line_and_function(place: Location) -> str:
    line = f":{place.line}" if place.line > 0 else ""
    return f"{line} in {visible(place.function)}" if place.function else line


_SIZE = re.compile(r"[0-9] (?:bytes?|[KMGT]i?B)\b")


def with_stake(text: str, size_bytes: int | None) -> str:
    """The text, followed by the bytes that are at stake unless it names a size itself."""
    if not size_bytes or _SIZE.search(text):
        return text
    return f"{text.rstrip('.')} ({format_size(size_bytes)} at stake)"


_COMMANDS = {"vramlens", "torchrun", "python", "pip", "git", "export"}
_EXPRESSION = re.compile(r"^\w+(?:, \w+)* [-+*/@=<>&|^]")
"""``hidden @ weight``: code, though it begins with a word."""


def capitalized(text: str) -> str:
    """The text with a capital letter at its beginning, unless that is code or a name (vLLM)."""
    text = text.strip()
    first = text.split(" ", 1)[0].rstrip(",:")
    is_word = first.isalpha() and (first.islower() or len(first) == 1)  # cuBLAS is a name
    is_code = first in _COMMANDS or _EXPRESSION.match(text)
    return text[:1].upper() + text[1:] if is_word and not is_code else text


def sentence(text: str) -> str:
    """The text with a capital letter at its beginning, and an end where it has none."""
    text = capitalized(text)
    return text if not text or text[-1] in ".!?:" else text + "."


def visible_sentences(texts: Iterable[str]) -> tuple[str, ...]:
    """Texts that came with the input, each as a sentence."""
    return tuple(visible(sentence(text)) for text in texts)


def with_verdict(verdict: Verdict, title: str) -> str:
    """The title after a word that says how sure it is, where that is not proven."""
    if verdict in (Verdict.PROVEN, Verdict.NOT_A_PROBLEM):
        return title
    first_word = title.split(" ", 1)[0]
    is_word = first_word.isalpha() and not _EXPRESSION.match(title)
    if is_word and first_word == first_word.capitalize():
        title = title[:1].lower() + title[1:]
    return f"{verdict.capitalize()}: {title}"
