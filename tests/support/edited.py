"""A program edited between two runs: files with other names, lines that moved, as recordings
show them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vramlens.analyses.compare.compared_run import CodeLine
from vramlens.analyses.finding import Place

Edit = Callable[[Place], Place]
"""Where a line of the program stands after the edit."""


def edited_code(lines: list[CodeLine], edit: Edit) -> list[CodeLine]:
    """The lines after an edit; what they call of the program's own is called by its new names."""
    names = {_call(line.place): _call(edit(line.place)) for line in lines}
    return [
        CodeLine(
            edit(line.place), frozenset(names.get(call, call) for call in line.calls), line.sizes
        )
        for line in lines
    ]


def _call(place: Place) -> str:
    name = place.file.replace("\\", "/").rpartition("/")[2]
    return f"{name}:{place.function}"


def edited_snapshot(
    snapshot: dict[str, Any], edit: Edit, is_mine: Callable[[str], bool]
) -> dict[str, Any]:
    """The recording of the edited program.

    Args:
        is_mine: whether a file is the program's own.
    """
    known: dict[int, Any] = {}

    def frames(old: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if id(old) not in known:
            known[id(old)] = [frame(one) for one in old]
        return known[id(old)]

    def frame(old: dict[str, Any]) -> dict[str, Any]:
        if not is_mine(old["filename"]):
            return old
        if id(old) not in known:
            new = edit(Place(old["filename"], old["line"], old["name"]))
            known[id(old)] = {**old, "filename": new.file, "line": new.line, "name": new.function}
        return known[id(old)]

    def with_frames(one: dict[str, Any]) -> dict[str, Any]:
        return {**one, "frames": frames(one["frames"])} if one.get("frames") else one

    return {
        **snapshot,
        "device_traces": [
            [with_frames(event) for event in trace] for trace in snapshot["device_traces"]
        ],
        "segments": [
            {**with_frames(one), "blocks": [with_frames(block) for block in one["blocks"]]}
            for one in snapshot["segments"]
        ],
    }


def with_lines_above(edit: dict[int, int], place: Place) -> Place:
    """A line moved by all that was put in above it: by line, how many lines."""
    return replace(
        place, line=place.line + sum(count for line, count in edit.items() if line <= place.line)
    )
