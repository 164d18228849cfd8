"""Texts that a terminal, a log or a mail has broken over lines, anywhere, put together again."""

from __future__ import annotations

import re

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
        "CUDA out of memory Tried to allocate KiB MiB GiB TiB KB MB GB bytes GPU has total capacity of which is free"
        " Process memory in use Including non PyTorch this process has allowed allocated by with private pools Graphs"
        " and reserved but unallocated If is large try setting PYTORCH_CUDA_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF"
        " PYTORCH_ALLOC_CONF expandable_segments max_split_size_mb True to avoid fragmentation See documentation for"
        " Memory Management https pytorch org docs stable notes html environment variables already cached current",
    )
)


def broken(words: str) -> bytes:
    """A pattern for plain words that a line break may stand in, anywhere after the first letter."""
    letters = [rf"(?:(?:{_BREAK})| )" if letter == " " else re.escape(letter) for letter in words]
    pairs = zip(words, letters, words[1:] + " ", strict=True)
    return "".join(
        one + ("" if " " in (word, following) else f"(?:{_BREAK})?")
        for word, one, following in pairs
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
        left, right = re.search(r"[A-Za-z_]*$", text[-64:]), re.match(r"[A-Za-z_]*", body)
        word = (left[0] if left else "") + (right[0] if right else "")
        together = (
            (word in _VOCABULARY and bool(left and left[0]) and bool(right and right[0]))
            or bool(
                re.search(r"[\d.]$", text[-1:])
                and re.match(r"\.?\d", body)
                and not text.endswith(". ")
            )
            or text[-1:] in ("=", "/", "#", "_", "-")
            or body[:1] in (".", ",", ";", ")", "=", "/", "#", ":", "_", "-")
        )
        text += body if together or not text else " " + body
        if len(text) > squashed_end * 2 + _SPARE:
            break
    text = " ".join(text.split())
    seen = 0
    for index, letter in enumerate(text):
        seen += letter != " "
        if seen == squashed_end:
            return text, index + 1
    return text, len(text)
