"""Texts that a terminal, a log or a mail has broken over lines, anywhere, put together again."""

from __future__ import annotations

import re
from typing import cast

_BREAK = r"[ \t\r]{0,8}\n[ \t#>|*]{0,80}"  # where a terminal or a mail broke the line
_SPARE = 600  # characters of spaces that a message may have beside its own
ANSI = re.compile(rb"\x1b\[[0-9;?]{0,32}[ -/]{0,4}[@-~]")
_LINE_PREFIX = re.compile(
    r"[ \t]*(?:\[(?:rank|default)\d{1,7}\]:?[ \t]?|\d{1,7}: |[#>|*]{1,4}(?:[ \t]|$)"
    r"|\d{4}-\d\d-\d\d[T ][\d:.,]{5,20}Z?[ \t]{1,4}(?:\[?(?:DEBUG|INFO|WARNING|ERROR"
    r"|CRITICAL)\]?[ \t:-]{1,4})?){0,4}"
)
_VOCABULARY = frozenset(  # what a break inside a word is recognised by; only for showing the message
    re.findall(
        r"[A-Za-z_]{2,}",
        "CUDA out of memory Tried to allocate KiB MiB GiB TiB KB MB GB bytes GPU has total"
        " capacity of which is free Process memory in use Including non PyTorch this process has"
        " allowed allocated by with private pools Graphs and reserved but unallocated If is large"
        " try setting PYTORCH_CUDA_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF PYTORCH_ALLOC_CONF"
        " expandable_segments max_split_size_mb True to avoid fragmentation See documentation for"
        " Memory Management https pytorch org docs stable notes html environment variables already"
        " cached current",
    )
)

_LAST_WORD, _FIRST_WORD = re.compile(r"[A-Za-z_]*$"), re.compile(r"[A-Za-z_]*")
_GOES_ON = ("=", "/", "#", "_", "-")
_CONTINUES = (".", ",", ";", ")", "=", "/", "#", ":", "_", "-")


def broken(words: str) -> bytes:
    """A pattern for plain words that a line break may stand in, anywhere after the first letter."""
    letters = [rf"(?:(?:{_BREAK})| )" if letter == " " else re.escape(letter) for letter in words]
    pairs = zip(words, letters, words[1:] + " ", strict=True)
    return "".join(
        letter_pattern + ("" if " " in (word, following) else f"(?:{_BREAK})?")
        for word, letter_pattern, following in pairs
    ).encode()


def plain_lines(window: bytes) -> list[str]:
    """The window's lines: no colours, no log prefixes."""
    lines = ANSI.sub(b"", window).decode("utf-8", "replace").splitlines() or [""]
    return [lines[0], *(_LINE_PREFIX.sub("", line, count=1) for line in lines[1:])]


def squash(text: str) -> str:
    """The text without its spaces, but for those that part two numbers."""
    return re.sub(r"(?<!\d) | (?!\d)", "", " ".join(text.split()))


def unbroken(lines: list[str], squashed_end: int) -> tuple[str, int]:
    """The lines as one text, joined as words demand, and where the first so many characters but
    spaces end.
    """
    text = ""
    for line in lines:
        body = line.strip()
        joint = "" if not text or _belong_together(text, body) else " "
        text += joint + body
        if len(text) > squashed_end * 2 + _SPARE:
            break
    text = " ".join(text.split())
    passed = 0
    for index, letter in enumerate(text):
        passed += letter != " "
        if passed == squashed_end:
            return text, index + 1
    return text, len(text)


def _belong_together(text: str, following: str) -> bool:
    """True where a line break stood inside a word, a number or a sign of several characters."""
    if text.endswith(_GOES_ON) or following.startswith(_CONTINUES):
        return True
    before = cast(re.Match[str], _LAST_WORD.search(text[-64:]))[0]
    after = cast(re.Match[str], _FIRST_WORD.match(following))[0]
    if before and after and before + after in _VOCABULARY:
        return True
    is_in_number = re.search(r"[\d.]$", text[-1:]) and re.match(r"\.?\d", following)
    return bool(is_in_number) and not text.endswith(". ")
