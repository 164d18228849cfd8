"""The programs of the corpus, and what is true of each.

A program is a script as a user would write it. Beside its code stand, in comments, the truth and
the cure:

    loss = model(batch)  # ALLOCATES
    self.history.append(loss)  # KEEPS
    # FIX: self.history.append(loss.item())

A FIX replaces the line above it. ``TRUTH`` says the rest. What runs is a copy without any of these:
same lines, same numbers, nothing to peep at.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).with_name("programs")
_MARKS = re.compile(r"\s*# (?P<marks>(?:(?:KEEPS|ALLOCATES)\d?\s*)+)$")
_FIX = re.compile(r"\s*# FIX: (?P<fix>.*)$")


@dataclass(frozen=True)
class Leak:
    """One leak of a program.

    Attributes:
        classes: the classes that an honest judge accepts; more than one only where `why` says why.
        owner: words, one of which the owner's name must hold.
        bytes_per_step: storage bytes, each storage once, that a step leaves behind.
        keeps: lines of the statement that keeps it.
        allocates: lines of the innermost function common to all that is kept, in which it is asked
            for.
        verdicts: what it may be called; a leak of a few bytes need not be called likely.
    """

    classes: frozenset[str]
    owner: tuple[str, ...]
    bytes_per_step: int
    keeps: frozenset[int]
    allocates: frozenset[int]
    verdicts: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Program:
    """A program and its truth.

    Attributes:
        leaks: empty for a look-alike.
        reason: why a look-alike is no leak.
        needs: packages that must be there.
        settled: that its memory is flat (or comes back) at its end: not so for a bounded cache that
            is still filling.
        stacks: that what is kept is made in the main thread by PyTorch's operators, so that the
            slow check sees it.
        lines: that its own lines keep and allocate, and not a notebook's cells.
    """

    name: str
    case: str
    leaks: tuple[Leak, ...]
    reason: str
    needs: tuple[str, ...]
    settled: bool
    stacks: bool
    lines: bool
    text: str = field(repr=False)
    fixed_text: str = field(repr=False)


@cache
def programs() -> dict[str, Program]:
    """All programs by name."""
    return {path.stem: _program(path) for path in sorted(PROGRAMS.glob("*.py"))}


def _program(path: Path) -> Program:
    source = path.read_text()
    lines = source.splitlines()
    tree = ast.parse(source)
    truth, case, last = _truth(tree)
    marks: dict[str, set[int]] = {}
    plain, fixed = [], []
    for number, line in enumerate(lines, 1):
        if cure := _FIX.match(line):
            above = plain[-1]
            fixed[-1] = above[: len(above) - len(above.lstrip())] + cure["fix"]
            line = ""
        elif found := _MARKS.search(line):
            for mark in found["marks"].split():
                marks.setdefault(mark if mark[-1].isdigit() else mark + "1", set()).add(number)
            line = line[: found.start()]
        plain.append(line)
        fixed.append(line)
    for number in last:
        plain[number] = fixed[number] = ""
    leaks = tuple(
        Leak(
            classes=frozenset(each["class"]),
            owner=tuple(each["owner"]),
            bytes_per_step=each["bytes_per_step"],
            keeps=frozenset(marks.pop(f"KEEPS{number}")),
            allocates=frozenset(marks.pop(f"ALLOCATES{number}")),
            verdicts=tuple(each.get("verdicts", ("proven", "likely"))),
            why=each.get("why", ""),
        )
        for number, each in enumerate(truth.get("leaks", ()), 1)
    )
    if marks or bool(leaks) == ("not a leak" in truth):
        raise ValueError(
            f"{path.name}: marks {sorted(marks)} without a leak, or neither leak nor reason"
        )
    return Program(
        name=path.stem,
        case=case,
        leaks=leaks,
        reason=truth.get("not a leak", ""),
        needs=tuple(truth.get("needs", ())),
        settled=truth.get("settled", True),
        stacks=truth.get("stacks", True),
        lines=truth.get("lines", True),
        text="\n".join(plain) + "\n",
        fixed_text="\n".join(fixed) + "\n",
    )


def _truth(tree: ast.Module) -> tuple[dict[str, Any], str, range]:
    """TRUTH, the docstring, and the lines (from 0) that hold TRUTH."""
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "TRUTH"
        ):
            code = compile(ast.Expression(node.value), "TRUTH", "eval")
            assert node.end_lineno is not None
            return (
                eval(code, {"__builtins__": {}}),
                ast.get_docstring(tree) or "",
                range(node.lineno - 1, node.end_lineno),
            )
    raise ValueError("no TRUTH")
