"""The variables that functions had at their end, where the program itself ends with them.

What ``main()`` holds goes when it returns, before anybody can look. Where a function runs in the
last statement of the program, nothing of the program's comes after it: its frame is kept, and with
it the variables, until the last look. Frames of functions that the program goes on after are never
kept: their memory is wanted again.
"""

from __future__ import annotations

import ast
import sys
import threading
import types
from functools import lru_cache
from itertools import islice, takewhile, zip_longest

from vramlens.ground.source_code import last_line_of
from vramlens.live.heap.objects import (
    code_of,
    frame_variables,
    frames_from,
    is_users,
    running_frames,
)
from vramlens.live.source.source_tree import tree_of

_DEEPEST = 500
"""Functions around a step that are looked at in each step: a loop in a deeper one is recursion, which
ends in no ``main()``.
"""
_ASYNC_RUNNERS = ("asyncio",)
_GENERATOR = 0x20 | 0x200  # of a code's flags: a generator, also an asynchronous one

kept_frames: list[types.FrameType] = []
"""Innermost first. Searches take their variables for roots."""
_latest: tuple[list[tuple[types.CodeType, int]], bool] = ([], False)
"""Where each frame of the latest step was, and what was said then."""


def keep_last(frame: types.FrameType | None) -> bool:
    """Keeps the frames around one in which a step ends, as far as the program ends with them;
    lets go of others. Gives whether these are all of the user's functions around the step: then
    the last look will see all that there is to see.

    Where a step ends in another thread, as in a server's worker, the program ends with the main
    thread's frames. Once these have returned while another thread works on, the program has given
    up what they held: so is what was kept of them.
    """
    main_thread = threading.main_thread().ident
    is_main = threading.get_ident() == main_thread
    if not is_main:
        frame = sys._current_frames().get(main_thread or 0)
    stack = list(islice(frames_from(frame), _DEEPEST))
    global _latest
    places = [(frame.f_code, frame.f_lasti) for frame in stack]
    if places == _latest[0] and set(map(id, kept_frames)) <= set(map(id, stack)):
        return _latest[1]
    kept_frames[:] = _last_frames(stack[::-1])[::-1]
    inside = takewhile(lambda frame: not _is_main_module(frame), stack)
    users = {id(frame) for frame in inside if is_users(frame.f_code.co_filename)}
    sees_all = is_main and bool(kept_frames) and users <= set(map(id, kept_frames))
    sees_all &= not any(_lets_go_before_its_end(*place) for place in map(_place_of, kept_frames))
    _latest = places, sees_all
    return sees_all


def let_go() -> None:
    """Lets go of all frames."""
    global _latest
    kept_frames.clear()
    _latest = [], False


def ended_frames() -> list[tuple[types.FrameType, int]]:
    """The kept frames whose functions have ended, with the lines that they ended at."""
    running = set(map(id, running_frames()))
    return [(frame, frame.f_lineno or 0) for frame in kept_frames if id(frame) not in running]


def _last_frames(stack: list[types.FrameType]) -> list[types.FrameType]:
    """Those that the program ends with, outermost first: each is called in the last statement of
    the one before.
    """
    # The last: what runs the program was the main module before it, and lent it its namespace.
    places = [place for place, frame in enumerate(stack) if _is_main_module(frame)]
    if not places or not _runs_last_statement(stack[places[-1]]):
        return []
    frames: list[types.FrameType] = []
    inside = stack[places[-1] + 1 :]
    for frame, called in zip_longest(inside, inside[1:]):
        if _is_async_runner(frame):
            coroutine_frame = _frame_that_waits(frame, stack)  # of asyncio.run(main())
            if coroutine_frame is not None:
                return [*frames, coroutine_frame]  # another task is at work
            continue
        if called is not None and _wraps(frame, called):
            continue
        if not _is_users_function(frame.f_code):
            break
        frames.append(frame)
        if not _runs_last_statement(frame):
            break
    return frames


def _is_main_module(frame: types.FrameType) -> bool:
    return (
        frame.f_code.co_name == "<module>" and frame.f_globals is sys.modules["__main__"].__dict__
    )


def _is_async_runner(frame: types.FrameType) -> bool:
    if is_users(frame.f_code.co_filename):
        return False
    name = frame.f_globals.get("__name__")
    return type(name) is str and name.partition(".")[0] in _ASYNC_RUNNERS


def _frame_that_waits(
    runner: types.FrameType, stack: list[types.FrameType]
) -> types.FrameType | None:
    """The frame of the user's coroutine that ``asyncio.run`` runs, where it is not at work."""
    if runner.f_code.co_name != "run" or "main" not in runner.f_code.co_varnames:
        return None
    coroutine = frame_variables(runner).get("main")
    if type(coroutine) is not types.CoroutineType or coroutine.cr_frame in stack:
        return None
    return coroutine.cr_frame if is_users(coroutine.cr_code.co_filename) else None


def _wraps(frame: types.FrameType, called: types.FrameType) -> bool:
    """Whether a library's function is a decorator's, around the one that it has called: of
    ``@torch.no_grad()`` before ``def main()``.
    """
    if is_users(frame.f_code.co_filename) or not frame.f_code.co_freevars:
        return False
    variables = frame_variables(frame)
    enclosed = (variables.get(name) for name in frame.f_code.co_freevars)
    return called.f_code in map(code_of, enclosed)


def _is_users_function(code: types.CodeType) -> bool:
    return is_users(code.co_filename) and not code.co_flags & _GENERATOR


def _place_of(frame: types.FrameType) -> tuple[types.CodeType, int]:
    return frame.f_code, frame.f_lineno or 0


@lru_cache(maxsize=1024)
def _lets_go_before_its_end(code: types.CodeType, line: int) -> bool:
    """Whether a line is in a block of what has a name, ``with ExitStack() as scope``: what that holds goes with the
    block, before the function ends.
    """
    return any(
        statement.lineno <= line <= last_line_of(statement)
        and any(item.optional_vars is not None for item in statement.items)
        for part in _body_of(code)
        for statement in ast.walk(part)
        if isinstance(statement, (ast.With, ast.AsyncWith))
    )


def _runs_last_statement(frame: types.FrameType) -> bool:
    return _is_in_last_statement(*_place_of(frame))


@lru_cache(maxsize=1024)
def _is_in_last_statement(code: types.CodeType, line: int) -> bool:
    """Whether a line is in the last statement of a function or module, and in no loop there."""
    body = _body_of(code)
    while body:
        last = body[-1]
        if not last.lineno <= line <= last_line_of(last):
            return False
        if isinstance(last, (ast.Expr, ast.Return, ast.Assign, ast.Raise)):
            return True
        body = _part_at(last, line)
    return False


def _part_at(statement: ast.stmt, line: int) -> list[ast.stmt]:
    """The body that a line is in, of a statement that runs it once and nothing after it; empty
    elsewhere.
    """
    match statement:
        case ast.If(orelse=[first, *_]) if line >= first.lineno:
            return statement.orelse
        case ast.If() | ast.With() | ast.AsyncWith():
            return statement.body
        case ast.Try(body=[*_, last], orelse=[], finalbody=[]) if line <= (last.end_lineno or 0):
            return statement.body
    return []


def _body_of(code: types.CodeType) -> list[ast.stmt]:
    tree = tree_of(code.co_filename)
    if tree is None or code.co_name == "<module>":
        return [] if tree is None else tree.body
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return node.body
    return []
