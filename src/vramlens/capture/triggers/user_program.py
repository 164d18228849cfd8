"""Running the user's program in this process as Python itself would: same names, same arguments,
same endings.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import io
import os
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from types import CodeType, ModuleType, TracebackType
from typing import Any

from vramlens.errors import NoProgram

_NOT_OF_A_FOLDER = ("built-in", "frozen")


def execute_script(path: str, arguments: Sequence[str]) -> None:
    """Runs a script as ``python path arguments`` would.

    Raises:
        NoProgram: there is no such script. Whatever the program raises passes through.
    """
    if os.path.isdir(path) or path.endswith((".zip", ".pyz")):
        _execute_container(path, arguments)
        return
    file_name = _absolute(path)
    try:
        with io.open_code(file_name) as file:
            source = file.read()
    except OSError as error:
        raise NoProgram(f"{path}: {(error.strerror or str(error)).lower()}") from None
    _search_first(os.path.dirname(os.path.realpath(path)))
    sys.argv = [path, *arguments]
    loader = importlib.machinery.SourceFileLoader("__main__", file_name)
    with _Ending():
        code = compile(source, file_name, "exec", dont_inherit=True)
        _run(
            code,
            {"__package__": None, "__loader__": loader, "__spec__": None},
            {"__file__": file_name, "__cached__": None},
        )


def execute_module(name: str, arguments: Sequence[str]) -> None:
    """Runs a module or package as ``python -m name arguments`` would.

    Raises:
        NoProgram: there is no such module. Whatever the program raises passes through.
    """
    import runpy

    _search_first(os.getcwd())
    sys.argv = ["-m", *arguments]
    with _Ending():
        try:
            # What python -m itself, pdb, cProfile and trace use; it has no public name.
            details: Any = runpy._get_module_details(name, runpy._Error)  # type: ignore[attr-defined]
        except runpy._Error as error:  # type: ignore[attr-defined]
            raise NoProgram(f"-m {name}: {error}") from None
    _, spec, code = details
    sys.argv[0] = spec.origin
    _run_found(spec, code)


def _execute_container(path: str, arguments: Sequence[str]) -> None:
    """A folder or a zip file with a ``__main__.py`` in it."""
    import runpy

    sys.argv = [path, *arguments]
    _search_first(_absolute(path))
    try:
        # What Python itself runs such a program by; it has no public name.
        details: Any = runpy._get_main_module_details(runpy._Error)  # type: ignore[attr-defined]
    except runpy._Error as error:  # type: ignore[attr-defined]
        raise NoProgram(f"{path}: {error}") from None
    _, spec, code = details
    _run_found(spec, code)


def _run_found(spec: importlib.machinery.ModuleSpec, code: CodeType) -> None:
    """Runs a program that Python's import system has found."""
    with _Ending():
        _run(
            code,
            {"__package__": spec.parent, "__loader__": spec.loader, "__spec__": spec},
            {"__file__": spec.origin, "__cached__": spec.cached},
        )


def _absolute(path: str) -> str:
    """The path as Python makes that of a program absolute: nothing in it is shortened."""
    if os.name == "nt":
        return os.path.abspath(path)
    try:
        return os.path.join(os.getcwd(), path)
    except OSError:  # the present folder is gone
        return path


def _search_first(folder: str) -> None:
    """Puts the folder where Python puts it, in the place of the one that the vramlens command
    lies in. What lies there is what the program's imports find, as without us.
    """
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder
        give_back_shadowed(folder)


def _run(code: CodeType, of_import: dict[str, Any], file: dict[str, Any]) -> None:
    """Runs the program by the names that Python gives it, in Python's order."""
    main = sys.modules["__main__"].__dict__
    main.clear()
    main.update({"__name__": "__main__", "__doc__": None, **of_import})
    if sys.version_info < (3, 14):
        main["__annotations__"] = {}
    main.update({"__builtins__": builtins, **file})
    exec(code, main)


class _Ending:
    """Sees to it that a traceback begins with the program's own frames."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: object, exception: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exception is None or isinstance(exception, (NoProgram, SystemExit)):
            return
        hook = sys.excepthook

        def print_without_ours(
            kind: type[BaseException], caught: BaseException, trace: TracebackType | None
        ) -> None:
            # Once: what the program looks up afterwards is its own, and nothing here keeps the
            # variables of the functions that failed until the interpreter is gone.
            sys.excepthook = hook
            if caught is exception:
                trace = _programs_own(trace)
                caught.__traceback__ = trace
                sys.last_traceback = trace
            hook(kind, caught, trace)

        print_without_ours.__dict__.update(vars(hook) if hasattr(hook, "__dict__") else {})
        sys.excepthook = print_without_ours


def _programs_own(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame on that follows this module's last."""
    programs_own, entry = trace, trace
    while entry is not None:
        if entry.tb_frame.f_code.co_filename == __file__:
            programs_own = entry.tb_next
        entry = entry.tb_next
    return programs_own


def give_back_shadowed(folder: str) -> None:
    """Has the program find its own modules where vramlens has imported others of their names.

    Python looks into the program's folder first: its ``queue.py`` is what ``import queue`` finds
    there. So it stays, although vramlens has needed Python's own before the program began.
    """
    shadowed = {name for name in _imported_by_us() if _is_shadowed(name, folder)}
    for name in tuple(sys.modules):
        if name.partition(".")[0] in shadowed:
            del sys.modules[name]


def _imported_by_us() -> set[str]:
    """The modules, by their first names, that are there because of vramlens."""
    names = list(sys.modules)
    later = names[names.index("vramlens") :]
    return {name.partition(".")[0] for name in later} - {"vramlens"}


def _is_shadowed(name: str, folder: str) -> bool:
    """Whether the folder, which comes first, has another module of that name."""
    origin = _origin_of(sys.modules.get(name))
    if origin is None or origin in _NOT_OF_A_FOLDER:
        return False
    spec = PathFinder.find_spec(name, [folder])
    if spec is None or spec.loader is None or spec.origin is None:
        return False
    return os.path.realpath(spec.origin) != os.path.realpath(origin)


def _origin_of(module: ModuleType | None) -> str | None:
    return getattr(getattr(module, "__spec__", None), "origin", None)
