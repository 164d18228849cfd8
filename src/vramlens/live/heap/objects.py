"""Objects as the interpreter keeps them: read by type, never through anything that a class can
redefine.

No ``__getattr__``, ``__len__``, ``__eq__``, ``__hash__``, ``__class__`` or ``__repr__`` of the
program runs here: classes come from ``type()``, attributes from the instance's real dict and slots,
elements from the built-in containers' methods.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vramlens.ground.live_objects import class_dict as class_dict
from vramlens.ground.live_objects import class_module as class_module
from vramlens.ground.live_objects import class_name as class_name
from vramlens.ground.live_objects import class_order as class_order
from vramlens.ground.live_objects import class_path as class_path
from vramlens.ground.live_objects import is_kind as is_kind
from vramlens.ground.live_objects import namespace_of as namespace_of
from vramlens.ground.live_objects import slots_of as slots_of
from vramlens.ground.place import is_user_file

_OPTIMIZED = 0x1  # code whose variables are fast locals: functions, not modules and classes
_REFERENCES_OF_A_SNAPSHOT = 3  # the frame's, ours, and getrefcount's own
_REFERENCES_OF_THE_GONE = 4  # the table's, its list's, the loop's, and getrefcount's own
_EMPTIED: dict[int, dict[str, Any]] = {}
"""Copies of variables that we emptied, by the number of their frame, which keeps them."""
_MOST_EMPTIED = 256
_LONGEST_KEY = 60
_CODES = {
    id(types.FunctionType): "__code__",
    id(types.GeneratorType): "gi_code",
    id(types.CoroutineType): "cr_code",
    id(types.AsyncGeneratorType): "ag_code",
}
"""Where these kinds, by identity, keep their code."""
_INNER_FUNCTIONS = {
    id(types.MethodType): "__func__",
    id(staticmethod): "__func__",
    id(classmethod): "__func__",
    id(functools.partial): "func",
    id(property): "fget",
}
"""Where these kinds, by identity, keep the function that they are made of."""
QUEUES = ("queue", "asyncio.queues")
"""Modules whose classes are queues."""
_PACKAGE = str(Path(os.path.abspath(__file__)).parents[2]) + os.sep


def is_array(value: Any) -> bool:
    """Whether a value is a NumPy array: it may hold objects, and tells the collector nothing of
    them.
    """
    return class_module(type(value)) == "numpy" and class_name(type(value)) == "ndarray"


def is_own_file(file: str) -> bool:
    """Whether a file belongs to this package."""
    return file.startswith(_PACKAGE)


@functools.lru_cache(maxsize=8192)
def is_users(file: str) -> bool:
    """Whether a file is the user's own code."""
    return is_user_file(file) and not is_own_file(file)


def is_users_class(cls: type) -> bool:
    """Whether a class is from the user's own code.

    A module without a file is a library's, such as what C code adds to a package; the user's are
    what runs as the program and what is in no module at all.
    """
    name = class_module(cls)
    module = sys.modules.get(name)
    names = getattr(module, "__dict__", None) if type(module) is types.ModuleType else None
    file = names.get("__file__") if type(names) is dict else None
    if type(file) is str:
        return is_users(file)
    return name in ("__main__", "") or module is None


def is_recorded_warning(value: object) -> bool:
    """Whether it is what ``warnings.catch_warnings(record=True)`` keeps of a warning."""
    kind = type(value)
    # Python 3.14 has it in _py_warnings.
    return class_name(kind) == "WarningMessage" and class_module(kind) in (
        "warnings",
        "_py_warnings",
    )


def is_log_record(value: object) -> bool:
    """Whether it is what a handler of ``logging`` gets of a line that is logged."""
    return any(
        class_name(base) == "LogRecord" and class_module(base) == "logging"
        for base in class_order(type(value))
    )


def line_of_report(value: object) -> tuple[str, int] | None:
    """The file and line that gave a recorded warning, or logged a record; None of anything else."""
    if is_recorded_warning(value):
        names = ("filename", "lineno")
    elif is_log_record(value):
        names = ("pathname", "lineno")
    else:
        return None
    attributes = dict(attributes_of(value))
    file, line = (attributes.get(name) for name in names)
    return (file, line) if type(file) is str and type(line) is int else None


def attributes_of(owner: object) -> list[tuple[str, Any]]:
    """Names and values of an instance's own attributes: the real dict and the slots, never a
    property.
    """
    attributes = [
        (name, value) for name, value in dict_items(namespace_of(owner)) if type(name) is str
    ]
    return [*attributes, *slots_of(owner)]


def dict_items(value: object) -> list[tuple[Any, Any]]:
    """Keys and values of a dict or of what is derived from it; empty for all else."""
    kind = type(value)
    if kind is dict or kind is defaultdict:
        return list(dict.items(value))  # type: ignore[arg-type]
    if kind is OrderedDict:
        return list(OrderedDict.items(value))  # type: ignore[arg-type]
    if kind is types.MappingProxyType:
        return []
    if is_kind(value, OrderedDict, dict):
        return list(dict.items(value))  # type: ignore[arg-type]
    return []


def elements_of(value: object) -> Iterator[Any] | None:
    """The elements of a built-in sequence or set, or of what is derived from one; None for all
    else.
    """
    kind: Any
    for kind in (list, tuple, deque, set, frozenset):
        if is_kind(value, kind):
            elements: Iterator[Any] = iter(kind.__iter__(value))
            return elements
    return None


def length_of(value: object) -> int | None:
    """How many elements a built-in container has; None for all else."""
    kind: Any
    for kind in (list, tuple, dict, deque, set, frozenset):
        if is_kind(value, kind):
            return int(kind.__len__(value))
    return None


def key_text(key: object) -> str:
    """A dict's key as one would write it; keys that could run code when printed are named by
    their type.
    """
    kind = type(key)
    if kind in (str, int, bool, float, type(None), bytes):
        return repr(key)[:_LONGEST_KEY]
    if kind is tuple:
        return f"({', '.join(key_text(part) for part in key[:4])})"[:_LONGEST_KEY]  # type: ignore[index]
    return f"<{class_name(kind)}>"


def frames_from(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    """Yields a frame and those that called it, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def running_frames() -> Iterator[types.FrameType]:
    """Yields the frames of all threads."""
    innermost_frames = sys._current_frames()
    for thread in list(innermost_frames):
        yield from frames_from(innermost_frames.pop(thread))  # its own among them: not kept


def frame_variables(frame: types.FrameType) -> dict[str, Any]:
    """The local variables of a frame, as a dict of our own.

    Up to Python 3.12 reading ``f_locals`` leaves a copy of them in the frame, which would keep
    alive what the function deletes later; that copy is emptied again, unless somebody else has it
    (``locals()``) or a debugger needs it. One that we left empty, and that still was, is emptied
    whoever has it: a list of all objects does.
    """
    emptied = _EMPTIED.get(id(frame))
    was_left_empty = emptied is not None and not emptied
    snapshot: Any = frame.f_locals
    if not frame.f_code.co_flags & _OPTIMIZED:
        return {name: value for name, value in dict_items(snapshot) if type(name) is str}
    variables = dict(snapshot)
    if sys.version_info >= (3, 13) or type(snapshot) is not dict:
        return variables
    if frame.f_trace is not None or _is_debugged():
        return variables
    is_known = snapshot is emptied
    references = sys.getrefcount(snapshot) - 2 * is_known  # ours of it before, and in the table
    if (is_known and was_left_empty) or references <= _REFERENCES_OF_A_SNAPSHOT:
        snapshot.clear()
        _keep_emptied(frame, snapshot)
    return variables


def _is_debugged() -> bool:
    """Whether a debugger traces this thread, which may change variables; our own tracing reads none."""
    tracer: object = sys.gettrace()
    return tracer is not None and class_module(type(tracer)).partition(".")[0] != "vramlens"


def _keep_emptied(frame: types.FrameType, snapshot: dict[str, Any]) -> None:
    """Keeps the copy that a frame will fill again; those of frames that are gone are let go."""
    _EMPTIED[id(frame)] = snapshot
    if len(_EMPTIED) > _MOST_EMPTIED:
        for number, emptied in list(_EMPTIED.items()):
            if sys.getrefcount(emptied) <= _REFERENCES_OF_THE_GONE:
                _EMPTIED.pop(number, None)


def code_of(function: object) -> types.CodeType | None:
    """The code of a function, method, partial or wrapper; None where there is none. Of a function
    that a library wraps (``torch.no_grad()``) the one inside.
    """
    for _ in range(8):
        kind = id(type(function))
        if kind in _CODES:
            code: types.CodeType = getattr(function, _CODES[kind])
            inside = dict(dict_items(namespace_of(function))).get("__wrapped__")
            if inside is None or is_users(code.co_filename):
                return code
            function = inside
            continue
        if kind in _INNER_FUNCTIONS:
            function = getattr(function, _INNER_FUNCTIONS[kind])
        else:
            function = dict(dict_items(namespace_of(function))).get("__wrapped__")
            if function is None:
                return None
    return None
