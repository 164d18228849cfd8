"""Why a script failed while it was predicted, in one line: where, and whether a made-up number or the
script itself is the reason.
"""

from __future__ import annotations

import ast
import os
import shlex
import traceback
from collections.abc import Sequence
from typing import NamedTuple

from vramlens.capture.triggers.ending_line import is_users
from vramlens.ground.place import Place, is_user_file
from vramlens.ground.source_code import called, last_line_of, parsed_file
from vramlens.prediction.predicted_peak import near_path
from vramlens.prediction.refusals import failure_words, one_line_of
from vramlens.prediction.tensors.asked_values import AskedValues

_CHECKS_AND_LOOKUPS = (AssertionError, ValueError, KeyError, IndexError, NameError)
"""What a program raises where a number is not as it should be; a name may be set only where it is."""
_OF_NUMBERS = (*_CHECKS_AND_LOOKUPS, ArithmeticError)
_BINDS_BY_NAME = {"exec", "globals", "locals", "vars"}
_ARGUMENTS_REFUSED = 2
"""The exit code of argparse, and of click, where arguments are wrong."""


def failure_line(path: str, error: Exception, asked_values: AskedValues) -> str:
    """Where a script failed and why, in one line.

    Args:
        path: the script, as it was typed.
        asked_values: where it was given made-up numbers.
    """
    if isinstance(error, SyntaxError) and _is_of_program(error.filename or "", path):
        place = f"{_typed(error.filename or '', path)}:{error.lineno or 0}"
        return f"{place}: the script itself fails: {type(error).__name__}: {error.msg}"
    places = _program_places(path, error)
    where, words = _where(path, places), failure_words(error)
    fault = _fault_of_script(path, error)
    if fault is not None:
        return f"{where}: {fault}: {words}"
    made_up = _made_up_words(path, error, places, asked_values)
    return f"{where}: could not be predicted: {words}{made_up}"


def exit_line(path: str, ending: SystemExit, asked_values: AskedValues) -> str:
    """How a script ended itself too early, in one line.

    Args:
        path, asked_values: as in ``failure_line``.
    """
    code = ending.code
    words = f"code {code}" if isinstance(code, int) else one_line_of(str(code))
    if code == _ARGUMENTS_REFUSED:
        return (
            f"{path}: the script exited with {words}, as argparse does where arguments are missing"
            f" or wrong; its own arguments go after --: vramlens predict {shlex.quote(path)} --"
            " --name VALUE"
        )
    made_up = _made_up_words(path, ending, _program_places(path, ending), asked_values)
    return f"{path}: the script exited with {words}{made_up}"


def _program_places(path: str, error: BaseException) -> list[Place]:
    """The lines of the program's own that led to an error, the innermost last."""
    return [
        Place(frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if _is_of_program(frame.f_code.co_filename, path)
    ]


def _is_of_program(file: str, path: str) -> bool:
    return _is_script(file, path) or (is_user_file(file) and is_users(file))


def _is_script(file: str, path: str) -> bool:
    return os.path.realpath(file) == os.path.realpath(path)


def _typed(file: str, path: str) -> str:
    """A file as a person would type it."""
    return path if _is_script(file, path) else near_path(file)


def _where(path: str, places: Sequence[Place]) -> str:
    """The line that failed, and the one that it was called from."""
    words = list(dict.fromkeys(_place_words(path, place) for place in places[-2:]))
    return ", called from ".join(reversed(words)) or path


def _place_words(path: str, place: Place) -> str:
    # A module's top and a comprehension have no name that says more than the line.
    function = "" if place.function.startswith("<") else f" in {place.function}"
    return f"{_typed(place.file, path)}:{place.line}{function}"


def _fault_of_script(path: str, error: Exception) -> str | None:
    """What to say where a script would fail without a prediction, too; None where that is not sure."""
    *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
    file = innermost.f_code.co_filename
    name = getattr(error, "name", None)  # of what Python itself raises
    if name is None or not _is_of_program(file, path):
        return None
    if isinstance(error, ImportError):
        return "the script itself fails in this Python"
    if isinstance(error, NameError) and _is_never_bound(name, file):
        return "the script itself fails"
    return None


def _is_never_bound(name: str, file: str) -> bool:
    """Whether nothing in a file can give a name its meaning, whatever numbers decide."""
    tree = parsed_file(file)
    return tree is not None and not any(_may_bind(node, name) for node in ast.walk(tree))


def _may_bind(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Name):
        is_stored = node.id == name and not isinstance(node.ctx, ast.Load)
        return is_stored or node.id in _BINDS_BY_NAME
    if isinstance(node, ast.alias):
        return (node.asname or node.name.partition(".")[0]) in (name, "*")
    if isinstance(node, ast.keyword):  # the name of another function's parameter
        return False
    return name in (getattr(node, field, None) for field in ("name", "arg", "rest"))


def _made_up_words(
    path: str, error: BaseException, places: Sequence[Place], asked_values: AskedValues
) -> str:
    """What made-up numbers have to do with a failure; "" where nothing is known."""
    last = asked_values.last
    if not places or last is None:
        return ""
    failed = places[-1]
    decisive = _decisive_lines(failed)
    is_asked = not decisive.lines.isdisjoint(asked_values.lines.get(failed.file, ()))
    if is_asked and (decisive.is_check or isinstance(error, _OF_NUMBERS)):
        noun = "check" if decisive.is_check else "line"
        return (
            f". This {noun} uses a number that the prediction made up, as tensors have no values:"
            " guard or remove it for the prediction"
        )
    if isinstance(error, _CHECKS_AND_LOOKUPS):
        file, line = last
        return (
            ". The script uses numbers that the prediction makes up, as tensors have no values"
            f" (last read at {_typed(file, path)}:{line}): that may be why"
        )
    return ""


class _Decisive(NamedTuple):
    """What decides that a statement fails.

    Attributes:
        lines: the statement's own, and those of the test that leads to it where it only raises.
        is_check: whether it asserts, or raises.
    """

    lines: set[int]
    is_check: bool


def _decisive_lines(place: Place) -> _Decisive:
    tree = parsed_file(place.file)
    nodes = () if tree is None else ast.walk(tree)
    # From the outermost to the innermost: a walk goes by depth.
    statements = [
        node for node in nodes if isinstance(node, ast.stmt) and place.line in _lines_of(node)
    ]
    if not statements:
        return _Decisive({place.line}, is_check=False)
    statement = statements[-1]
    lines = set(_own_lines(statement))
    test = getattr(statements[-2], "test", None) if len(statements) > 1 else None
    if test is not None and _only_ends(statement):
        return _Decisive({*lines, *_lines_of(test)}, is_check=True)
    return _Decisive(lines, is_check=isinstance(statement, (ast.Assert, ast.Raise)))


def _only_ends(statement: ast.stmt) -> bool:
    """Whether a statement raises, or leaves the program."""
    if isinstance(statement, ast.Expr):
        return called(statement.value) in ("exit", "quit", "_exit")
    return isinstance(statement, ast.Raise)


def _own_lines(statement: ast.stmt) -> range:
    """The lines of a statement, without those of the statements in it."""
    body = getattr(statement, "body", None)
    if not body:
        return _lines_of(statement)
    return range(statement.lineno, max(statement.lineno + 1, body[0].lineno))


def _lines_of(node: ast.stmt | ast.expr) -> range:
    return range(node.lineno, last_line_of(node) + 1)
