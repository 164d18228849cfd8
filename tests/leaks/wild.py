"""Programs written by somebody who had not read the finder: leaks and look-alikes, each run three
ways.

A bundle of ``wild/**/*.txt`` holds many, each below ``#### name`` and a line that says what is true:

    # leak CLASSES OWNERS | BYTES A STEP | what happens        # none why it is no leak

``# KEEPS`` marks the statement that keeps, ``# KEEPS FIX: ...`` also what cures it, ``# KEEPS AT 1`` a
statement of code that the program itself compiles, by its line there; ``tick()`` ends a step and
``done()`` asks for the report where the program is watched from its own code. In the script neither
is there: ``vramlens run --leaks`` must do without.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).with_name("wild")
_HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n\n"
_CALLS = re.compile(r"^(\s*)(tick|done)\(\)$", re.MULTILINE)
_MARK = re.compile(r"  # KEEPS(?: AT (?P<line>\d+))?(?: FIX: (?P<cure>.*))?$")


@dataclass(frozen=True)
class Wild:
    """A program and its truth.

    Attributes:
        name: its own.
        bundle: the file that it stands in.
        classes: those that an honest judge accepts; empty for a look-alike.
        owners: words, one of which the owner's name or statement must hold; "-" where nobody can be
            named.
        bytes_per_step: storage bytes, the average of all steps; None where a witness counts them.
        keeps: lines of the statements that keep.
        case: what happens, or why it is no leak.
        text: the program, with ``tick()`` and ``done()``.
        cured: the same without its leak, where ``FIX`` says how.
    """

    name: str
    bundle: str
    classes: tuple[str, ...]
    owners: tuple[str, ...]
    bytes_per_step: int | None
    keeps: frozenset[int]
    case: str
    text: str
    cured: str

    @property
    def leaks(self) -> bool:
        """Whether it is no look-alike."""
        return bool(self.classes)

    @property
    def script(self) -> str:
        """The program as its user wrote it."""
        return _CALLS.sub(r"\1pass", self.text)


@cache
def wild_programs() -> dict[str, Wild]:
    """All programs by name."""
    programs: dict[str, Wild] = {}
    for path in sorted(FOLDER.rglob("*.txt")):
        for part in path.read_text().split("#### ")[1:]:
            program = _program(path.stem, part)
            if program.name in programs:
                raise ValueError(f"{path.name}: {program.name} is there twice")
            programs[program.name] = program
    return programs


def _cured_line(line: str) -> str:
    mark = _MARK.search(line)
    if mark is None or mark["cure"] is None:
        return _MARK.sub("", line)
    return line[: len(line) - len(line.lstrip())] + mark["cure"]


def _program(bundle: str, part: str) -> Wild:
    name, truth, code = part.split("\n", 2)
    kind, _, facts = truth.removeprefix("# ").partition(" ")
    lines = (_HEAD + code).splitlines()
    marks = {number: _MARK.search(line) for number, line in enumerate(lines, 1)}
    keeps = frozenset(int(mark["line"] or number) for number, mark in marks.items() if mark)
    text = "\n".join(_MARK.sub("", line) for line in lines) + "\n"
    cured = "\n".join(map(_cured_line, lines)) + "\n"
    if kind == "none":
        return Wild(name, bundle, (), (), None, keeps, facts, text, cured)
    names, size, case = (fact.strip() for fact in facts.split("|"))
    classes, owners = names.split()
    return Wild(
        name,
        bundle,
        tuple(classes.split(",")),
        tuple(owners.split(",")),
        None if size == "auto" else int(size),
        keeps,
        case,
        text,
        cured,
    )
