"""The source text of the program's lines that hold the most memory when a request fails, and of those that
ask for it.
"""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from vramlens.capture.failure_facts.freezing_lines import Line, freezing_lines
from vramlens.capture.triggers.ending_line import is_users
from vramlens.ground.program_errors import own_errors

_MOST_LINES = 16
_MOST_DERIVATIVES = 4
_MOST_FAILING, _FOLLOWING, _PRECEDING = 12, 3, 6
"""Lines that led to the failed request; lines after each: what becomes of the result; lines before the innermost:
what it is made of.
"""
_MOST_EVENTS = 1024
"""After the request that failed: other threads go on."""
_MOST_PARTS = 6
"""Lines that one statement goes on over."""
_LONGEST = 300
_AUTOGRAD = re.compile(r"[/\\]torch[/\\]autograd[/\\]__init__\.py$")


@dataclass(frozen=True, slots=True)
class _LinesOfProgram:
    """The program's own lines that asked for what is alive, with its bytes.

    Attributes:
        asking: the innermost ones.
        calling: those that called them.
        deriving: those that called ``torch.autograd.grad``.
        failing: those of the request that failed, the innermost first.
    """

    asking: Counter[Line] = field(default_factory=Counter)
    calling: Counter[Line] = field(default_factory=Counter)
    deriving: Counter[Line] = field(default_factory=Counter)
    failing: list[Line] = field(default_factory=list)

    def worth_their_text(self) -> Iterator[Line]:
        """Yields each line that is worth its text once, the largest first."""
        lines = chain(
            self.asking.most_common(_MOST_LINES),
            self.calling.most_common(_MOST_LINES),
            self.deriving.most_common(_MOST_DERIVATIVES),
        )
        following = (
            (file, line + number)
            for file, line in self.failing[:_MOST_FAILING]
            for number in range(1 + _FOLLOWING)
        )
        preceding = (
            (file, line - number)
            for file, line in self.failing[:1]
            for number in range(1, min(_PRECEDING, line - 1) + 1)
        )
        yield from dict.fromkeys([*(line for line, _ in lines), *following, *preceding])


def source_at_failure(snapshot: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The lines that asked for most of what is alive in a snapshot, then those that called them, those that
    asked for a derivative, those that led to its last failed request, with some around them, and those that
    freeze parameters: ``file``, ``line`` and ``text``; those without a file are left out. Never raises.
    """
    with own_errors():
        lines = list(_lines_of_program(snapshot).worth_their_text())
        lines += freezing_lines(dict.fromkeys(file for file, _ in lines))
        entries = (
            {"file": file, "line": line, "text": _text(file, line)}
            for file, line in dict.fromkeys(lines)
        )
        return [entry for entry in entries if entry["text"]]
    return []


def _lines_of_program(snapshot: Mapping[str, Any]) -> _LinesOfProgram:
    """The program's own lines in the stacks of what is alive."""
    lines = _LinesOfProgram()
    own_files: dict[str, bool] = {}
    for frames, size_bytes in _bytes_by_stack(snapshot):
        _add(lines, frames, size_bytes, own_files)
    for frame in _frames_of_failure(snapshot):
        if is_users(frame["filename"]):
            lines.failing.append((frame["filename"], frame["line"]))
    return lines


def _frames_of_failure(snapshot: Mapping[str, Any]) -> Sequence[Any]:
    """The stack of the last request that failed; none where no event is one."""
    for events in snapshot.get("device_traces", ()):
        for event in islice(reversed(events), _MOST_EVENTS):
            if event["action"] == "oom":
                return event["frames"]  # type: ignore[no-any-return]
    return ()


def _bytes_by_stack(snapshot: Mapping[str, Any]) -> Iterable[tuple[Sequence[Any], int]]:
    """The live bytes of each stack: PyTorch gives all blocks of one stack the same list of frames."""
    by_list: dict[int, tuple[Sequence[Any], int]] = {}
    for segment in snapshot.get("segments", ()):
        for block in segment.get("blocks", ()):
            if block.get("state") == "active_allocated":
                frames = block.get("frames", ())
                _, size_bytes = by_list.get(id(frames), (frames, 0))
                by_list[id(frames)] = (frames, size_bytes + block["size"])
    return by_list.values()


def _add(
    lines: _LinesOfProgram, frames: Sequence[Any], size_bytes: int, own_files: dict[str, bool]
) -> None:
    """Counts the program's lines in one stack, the innermost frame first.

    Args:
        own_files: whether a file is the program's own, as far as that is known.
    """
    kinds, inner_file, counted = lines.asking, "", set[Line]()  # a recursive caller counts once
    for frame in frames:
        file, line = frame["filename"], (frame["filename"], frame["line"])
        if file not in own_files:
            own_files[file] = is_users(file)
        if own_files[file]:
            kinds[line] += size_bytes * (line not in counted)
            counted.add(line)
            if kinds is lines.asking and _AUTOGRAD.search(inner_file):
                lines.deriving[line] += size_bytes
            kinds = lines.calling
        inner_file = file


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
