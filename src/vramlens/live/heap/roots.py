"""Roots: where everything that is alive is reached from, the user's own first.

Tiers: 0, the user's modules, the variables of the user's running functions, what an interactive
session keeps and exceptions that are being handled; 1, all else.
"""

from __future__ import annotations

import builtins
import contextvars
import gc
import signal
import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vramlens.ground.program_errors import own_errors
from vramlens.live.growth.last_frames import ended_frames
from vramlens.live.heap.looking_thread import looking_thread
from vramlens.live.heap.objects import frame_variables, frames_from, is_own_file, is_users

_MOST_FRAMES = 20_000
"""Whose variables are roots: twenty times Python's own limit on depth, for programs that raised it."""
_FOREIGN_THREAD = "a thread that Python did not start"
_NAMESPACE: Any = type.__dict__["__dict__"].__get__(types.ModuleType)["__dict__"]


@dataclass(frozen=True, slots=True)
class Root:
    """One root.

    Attributes:
        kind: module, variable, exception, context, interpreter, or hidden: found without its
            holder.
        name: of the module, the variable, or what the interpreter calls it.
        value: the object that is held; for a module its dict.
        tier: 0, the user's own; 1, all else.
        code, line: of a variable: the function that it is in, and the line that runs.
        thread: of a variable: the thread's name; empty for the main thread and the one that looks.
        has_ended: of a variable: whether the program ended with its function, by an exception or by
            its return.
    """

    kind: str
    name: str
    value: Any
    tier: int
    code: types.CodeType | None = None
    line: int = 0
    thread: str = ""
    has_ended: bool = False


def all_roots() -> list[Root]:
    """Every root of this moment, those of the user first; what another thread's function calls
    its own after all that is the main thread's, too.
    """
    modules = list(module_roots())
    namespaces = {id(root.value) for root in modules}
    roots = [*_variables(namespaces), *modules, *_interpreter()]
    return sorted(roots, key=lambda root: (root.tier, bool(root.thread)))


def module_objects() -> list[Any]:
    """All modules, as objects: nothing is looked for behind them but in their own turn."""
    return [module for module in list(sys.modules.values()) if module is not None]


def module_roots() -> Iterator[Root]:
    """Yields the namespace of each module, once."""
    namespaces: set[int] = set()
    for name, module in list(sys.modules.items()):
        if type(name) is not str or module is None:
            continue
        try:
            names = _NAMESPACE.__get__(module)
        except TypeError:  # some put an object of their own there
            continue
        if (
            type(names) is not dict
            or id(names) in namespaces
            or name.partition(".")[0] == "vramlens"
        ):
            continue
        namespaces.add(id(names))
        yield Root("module", name, names, 0 if _is_users_module(name, names) else 1)


def _is_users_module(name: str, names: dict[Any, Any]) -> bool:
    if name in ("__main__", "__mp_main__"):
        return True
    file = names.get("__file__")
    if type(file) is str:
        return is_users(file)
    package_name = name.rpartition(".")[0]
    package = sys.modules.get(package_name)
    if type(package) is types.ModuleType:  # ``torch.ops``: made by hand, but a library's
        return _is_users_module(package_name, _NAMESPACE.__get__(package))
    # Made by hand: a notebook's, an exec's. Namespace packages and what is built in have a loader
    #     or a path.
    return (
        names.get("__spec__") is None
        and "__path__" not in names
        and names.get("__loader__") is None
    )


def _variables(modules: set[int]) -> Iterator[Root]:
    """The variables of all threads' functions, innermost first, and the namespaces that they run
    in.

    Once the program has ended with an exception, those of the functions that it came through: they
    are what they were.
    """
    main = getattr(threading.main_thread(), "ident", None)
    thread_names = _thread_names(main, looking_thread())
    namespaces = set(modules)
    innermost_frames = sys._current_frames()
    numbers = iter(range(_MOST_FRAMES))
    for ident in list(innermost_frames):
        thread = thread_names.get(ident, _FOREIGN_THREAD)
        runs = False
        for frame, _ in zip(frames_from(innermost_frames.pop(ident)), numbers, strict=False):
            if not is_own_file(frame.f_code.co_filename):
                runs = runs or is_users(frame.f_code.co_filename)
                yield from _of_frame(frame, frame.f_lineno or 0, namespaces, thread)
        if ident == main and not runs:
            yield from _of_ended(_frames_of_the_end(), namespaces)
    yield from _of_ended(ended_frames(), namespaces)


def _thread_names(*ours: int | None) -> dict[int | None, str]:
    """The threads' names; empty for the main thread and the one that looks."""
    names = {thread.ident: thread.name or _FOREIGN_THREAD for thread in threading.enumerate()}
    return names | dict.fromkeys(ours, "")


def _of_ended(frames: list[tuple[types.FrameType, int]], namespaces: set[int]) -> Iterator[Root]:
    """The variables of functions that have ended, at their last lines."""
    for frame, line in frames:
        yield from _of_frame(frame, line, namespaces, "", has_ended=True)


def _of_frame(
    frame: types.FrameType, line: int, namespaces: set[int], thread: str, *, has_ended: bool = False
) -> Iterator[Root]:
    """The variables of one function, and the namespace that it runs in where that is new."""
    file = frame.f_code.co_filename
    tier = 0 if is_users(file) else 1
    names = frame.f_globals
    if type(names) is dict and id(names) not in namespaces:
        namespaces.add(id(names))  # of exec and runpy: a module in all but name
        name = names.get("__name__")
        yield Root("module", name if type(name) is str else file, names, tier)
    local: Any = None
    with own_errors():
        local = frame_variables(frame)
    if local and frame.f_code.co_name != "<module>":
        for name, value in local.items():
            yield Root(
                kind="variable",
                name=name,
                value=value,
                tier=tier,
                code=frame.f_code,
                line=line,
                thread=thread,
                has_ended=has_ended,
            )
    elif local and not _same(frame.f_globals, local):
        yield Root("module", str(names.get("__name__", file)), local, tier)


def _frames_of_the_end() -> list[tuple[types.FrameType, int]]:
    """The frames and lines that an exception came through which nobody caught, innermost first."""
    frames: list[tuple[types.FrameType, int]] = []
    trace = sys.__dict__.get("last_traceback")
    while type(trace) is types.TracebackType and len(frames) < _MOST_FRAMES:
        if not is_own_file(trace.tb_frame.f_code.co_filename):
            frames.append((trace.tb_frame, trace.tb_lineno or 0))
        trace = trace.tb_next
    return frames[::-1]


def _same(names: Any, local: dict[str, Any]) -> bool:
    return type(names) is dict and all(names.get(name) is value for name, value in local.items())


def _exceptions() -> Iterator[Root]:
    for name in ("last_exc", "last_value", "last_traceback"):
        value = sys.__dict__.get(name)
        if value is not None:
            yield Root("exception", f"sys.{name}", value, 0)
    handled: Any = None
    with own_errors():
        for handled in list(sys._current_exceptions().values()):
            value = handled[1] if type(handled) is tuple else handled
            if value is not None:
                yield Root("exception", "the exception that is being handled", value, 0)
    handled = None


def _interpreter() -> Iterator[Root]:
    yield from _exceptions()
    shown = builtins.__dict__.get("_")
    if shown is not None and type(shown) is not types.BuiltinFunctionType:
        yield Root("interpreter", "_", shown, 0)
    with own_errors():
        for variable, value in contextvars.copy_context().items():
            yield Root("context", variable.name, value, 0)
    for number in range(1, getattr(signal, "NSIG", 65)):
        with own_errors():
            handler = signal.getsignal(number)
            if handler is not None and type(handler) is not signal.Handlers:
                yield Root("interpreter", f"handler of signal {number}", handler, 1)
    if gc.garbage:
        yield Root("interpreter", "gc.garbage", gc.garbage, 1)
