"""The source text of the program's lines that hold the most memory when a request fails."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Mapping
from typing import Any

from vramlens.capture.triggers.ending_line import is_users
from vramlens.ground.program_errors import own_errors

_MOST_LINES = 8
_MOST_PARTS = 6
"""Lines that one statement goes on over."""
_LONGEST = 300


def source_of_largest(snapshot: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The lines that asked for most of what is alive in a snapshot: ``file``, ``line`` and ``text``, the
    largest first; those without a file are left out. Never raises.
    """
    with own_errors():
        largest = _bytes_by_line(snapshot).most_common(_MOST_LINES)
        entries = (
            {"file": file, "line": line, "text": _text(file, line)} for (file, line), _ in largest
        )
        return [entry for entry in entries if entry["text"]]
    return []


def _bytes_by_line(snapshot: Mapping[str, Any]) -> Counter[tuple[str, int]]:
    """The live bytes of each of the program's own lines."""
    sizes: Counter[tuple[str, int]] = Counter()
    own_files: dict[str, bool] = {}
    for segment in snapshot.get("segments", ()):
        for block in segment.get("blocks", ()):
            if block.get("state") != "active_allocated":
                continue
            for frame in block.get("frames", ()):
                file = frame["filename"]
                if file not in own_files:
                    own_files[file] = is_users(file)
                if own_files[file]:
                    sizes[file, frame["line"]] += block["size"]
                    break
    return sizes


def _text(file: str, line: int) -> str:
    """The statement that begins in a line, in one line: up to where its brackets are closed."""
    parts: list[str] = []
    for part in linecache.getlines(file)[line - 1 : line - 1 + _MOST_PARTS]:
        parts.append(part)
        text = "".join(parts)
        if all(
            text.count(opening) <= text.count(closing) for opening, closing in ("()", "[]", "{}")
        ):
            break
    return " ".join(" ".join(parts).split())[:_LONGEST]
