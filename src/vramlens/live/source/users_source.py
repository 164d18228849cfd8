"""The user's own files, read: those of modules, of what runs, and of what was reached from there."""

from __future__ import annotations

import linecache
import sys
import types
from collections.abc import Iterator, Mapping
from importlib.machinery import SourceFileLoader
from time import thread_time

from vramlens.capture.process.tracked_objects import tracked_objects
from vramlens.live.heap.objects import code_of, dict_items, is_users, running_frames
from vramlens.live.heap.roots import Root
from vramlens.live.heap.search import Search
from vramlens.live.source.executed_lines import codes_within, executed_lines
from vramlens.live.source.source_stores import Function, Module, read_source

_MOST_FILES = 400
"""Read and parsed: with half as many, files of a program of usual size would go unread; twice as many
take as long as the search.
"""
_MOST_SECONDS = 2.0
"""Of the processor, for the reading of a search: a second is a hundred files of usual size. Libraries
that lie elsewhere than installed ones do are the user's by their path, and PyTorch has files that
take a tenth of a second each.
"""
_WAITING = (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType)
_SHARE_OF_STEPS = 0.4
"""In which a line runs that each turn runs: a turn may be two calls of the model, each a step. With a
half, one call more at the end of what was traced would change the answer.
"""
_CHUNK = 4096
"""Objects between looks at the clock: a fraction of a millisecond."""


class UsersSource:
    """The source of the program, found once for a search.

    Attributes:
        lines_run: lines that are known to have run in whole steps, with in how many; None where
            that is not known.
        steps_run: how many these steps are.
    """

    def __init__(
        self,
        search: Search,
        lines_run: Mapping[tuple[str, int], int] | None = None,
        steps_run: int = 0,
    ) -> None:
        self._search = search
        self.lines_run, self.steps_run = lines_run, steps_run
        self._files: list[str] | None = None
        self._read, self._seconds = 0, 0.0
        self._codes: dict[str, list[types.CodeType]] | None = None

    def files(self) -> list[str]:
        """The user's files: those of modules, and of what runs or was reached from there."""
        if self._files is None:
            files = dict.fromkeys(filter(is_users, self._all_files()))
            self._files = list(files)[:_MOST_FILES]
        return self._files

    def _all_files(self) -> Iterator[str]:
        yield from _module_files()
        yield from _own_texts()
        for root in self._search.roots.values():
            yield from _files_of_root(root)
        for frame in running_frames():
            yield frame.f_code.co_filename

    def modules(self) -> Iterator[Module]:
        """The sources of all of them, or of the first, as many as can be read in time."""
        for place, file in enumerate(self.files()):
            if place == self._read and self._seconds > _MOST_SECONDS:
                return
            began = thread_time()
            module = read_source(file)
            self._seconds += thread_time() - began
            self._read = max(self._read, place + 1)
            if module is not None:
                yield module

    def function_of(self, code: types.CodeType) -> tuple[Module, Function] | None:
        """The source of a code object."""
        module = read_source(code.co_filename)
        if module is None:
            return None
        if code.co_name == "<module>":
            return module, module.functions[0][0]
        function = module.function_at(code.co_firstlineno, code.co_name)
        return None if function is None else (module, function)

    def has_run(self, file: str, first: int, last: int = 0) -> bool:
        """Whether a line, or one of several, is known to have run."""
        if self.lines_run is None:
            return False
        return any((file, line) in self.lines_run for line in range(first, max(first, last) + 1))

    def runs_in_steps(self, file: str, line: int) -> bool:
        """Whether a line ran in most steps that were traced, or in each second one; where none was,
        whether it ran several times.
        """
        if self.lines_run is None:
            return self.shows_runs(file, line, line)
        return self.lines_run.get((file, line), 0) >= _SHARE_OF_STEPS * self.steps_run

    def shows_runs(self, file: str, first: int, last: int) -> bool:
        """Whether one of some lines ran several times in any thread, as the interpreter shows."""
        lines = range(first, last + 1)
        near = (code for code in self._codes_of(file) if _reaches(code, first, last))
        return any(not executed_lines(code).isdisjoint(lines) for code in near)

    def calls_going_on(self, file: str, function: Function) -> int:
        """How many calls of a function have not ended: those that run, and coroutines and
        generators that wait.
        """
        codes = [frame.f_code for frame in running_frames()]
        waiting = (thing for thing in tracked_objects() if type(thing) in _WAITING)
        codes += filter(None, map(code_of, waiting))
        name = function.name.rpartition(".")[2]
        return sum(
            code.co_firstlineno == function.line
            and code.co_name == name
            and code.co_filename == file
            for code in codes
        )

    def _codes_of(self, file: str) -> list[types.CodeType]:
        """The code of a file's functions that the search has reached, or that run, and of those in
        them.
        """
        if self._codes is None:
            self._codes = {}
            for code in codes_within(dict.fromkeys(self._users_codes())):
                self._codes.setdefault(code.co_filename, []).append(code)
        return self._codes.get(file, [])

    def _users_codes(self) -> Iterator[types.CodeType]:
        """Yields the code of the user's functions, in one walk over what the search has reached, as
        long as its time allows.
        """
        search = self._search
        for low in range(0, len(search.order), _CHUNK):
            if search.is_over:
                return
            for value in search.order[low : low + _CHUNK]:
                if type(value) is types.FunctionType and is_users(value.__code__.co_filename):
                    yield value.__code__
        for root in search.roots.values():
            if root.code is not None and is_users(root.code.co_filename):
                yield root.code


def _reaches(code: types.CodeType, first: int, last: int) -> bool:
    """Whether a function has one of some lines; by its line table, which is read quickly."""
    if code.co_firstlineno > last:
        return False
    return any(line is not None and first <= line <= last for _, _, line in code.co_lines())


def _module_files() -> Iterator[str]:
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None) if type(module) is types.ModuleType else None
        file = _file_of(names) if type(names) is dict else None
        if type(file) is str and file.endswith(".py"):
            yield file


def _file_of(names: dict[str, object]) -> object:
    """A module's file. Python takes ``__file__`` from a script that has ended; its loader stays."""
    loader = names.get("__loader__")
    path = loader.path if isinstance(loader, SourceFileLoader) else None
    return names.get("__file__") or path


def _own_texts() -> Iterator[str]:
    """Yields names of sources that were never files: a notebook's cells."""
    for name, entry in list(linecache.cache.items()):
        if len(entry) > 1 and entry[1] is None:
            yield name


def _files_of_root(root: Root) -> Iterator[str]:
    """Yields the files of a running function, and of the functions in one of the user's modules."""
    if root.code is not None:
        yield root.code.co_filename
    if root.kind == "module" and root.tier == 0:
        for _, candidate in dict_items(root.value):
            if type(candidate) is types.FunctionType:
                yield candidate.__code__.co_filename
