"""Lines that are known to have run because the interpreter has specialized their instructions.

From Python 3.11 on, an instruction that ran some times is replaced in its code object by one for
the kinds of values that it saw. So code that ran often shows it, in whichever thread it ran, and
however long ago, and so do the lines that always lead there; any other line says nothing.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterable, Iterator

_QUICKENED = (
    "_ADAPTIVE",
    "_QUICK",
    "__",
    "INSTRUMENTED",
    "RESUME",
    "LOAD_CONST",
    "JUMP_BACKWARD",
)
"""In names of instructions that come without having run often where they are (from Python 3.14 on
the last two at the first run), or for debuggers.
"""
_ENDS = ("JUMP", "RETURN", "RAISE", "RERAISE")
"""Begins of the names of instructions after which the next one is reached by another way."""


def executed_lines(code: types.CodeType) -> set[int]:
    """The lines of a function, without those of functions in it, that ran several times."""
    if sys.version_info < (3, 11):
        return set()
    lines: set[int] = set()
    leading: set[int] = set()  # up to here, with no other way in
    for instruction in dis.Bytecode(code, adaptive=True):
        place = instruction.positions
        if instruction.is_jump_target:
            leading.clear()
        if place is not None and place.lineno:
            leading.add(place.lineno)
        if _is_specialized(instruction.opname):
            lines |= leading
        if instruction.opname.removeprefix("INSTRUMENTED_").startswith(_ENDS):
            leading.clear()
    return lines


def _is_specialized(name: str) -> bool:
    return name not in dis.opmap and not any(part in name for part in _QUICKENED)


def codes_within(codes: Iterable[types.CodeType]) -> Iterator[types.CodeType]:
    """Yields code objects, and those of the functions in them."""
    waiting = list(codes)
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [part for part in code.co_consts if type(part) is types.CodeType]
