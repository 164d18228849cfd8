"""The fix that a report tells, made in the program's text: as its user would type it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from leaks.wild import Wild

_INSTEAD = re.compile(r"keep (?P<new>.+?)(?: or (?P<other>\S+?\(\)))? instead of (?P<old>[^,:]+)")
_SUM = re.compile(r"(?P<new>[\w.\[\]\"']+ \+= .+\.detach\(\))[,:]")
_DETACHED = re.compile(r"cut the graph between steps: store \S+ detached")


def edited(program: Wild, leak: dict[str, Any]) -> Wild | None:
    """The program with the leak's fix in it; None where the fix is no edit of one expression."""
    owner = leak["owner"] or {}
    lines = program.text.splitlines()
    number = owner.get("line") or 0
    if not 0 < number <= len(lines):
        return None
    changed = _edited_line(lines[number - 1], leak["fix"] or "")
    if changed is None:
        return None
    lines[number - 1] = changed
    return replace(program, text="\n".join(lines) + "\n")


def _edited_line(line: str, fix: str) -> str | None:
    indent = line[: len(line) - len(line.lstrip())]
    if instead := _INSTEAD.search(fix):
        before, found, after = line.rpartition(instead["old"])
        return f"{before}{instead['new']}{after}" if found else None
    if told_sum := _SUM.search(fix):
        return f"{indent}{told_sum['new']}"
    if _DETACHED.search(fix) and " = " in line:
        target, _, value = line.partition(" = ")
        return f"{target} = ({value}).detach()"
    return None
