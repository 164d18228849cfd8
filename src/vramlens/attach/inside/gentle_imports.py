"""Imports from source text that was sent along, with rests, so that the program's threads run.

No file is read: after each call to the system a thread must get the interpreter's lock again, and
in a busy program that takes longer than the call. A thread that imports has the lock most of the
time. So it lets go of it between modules for longer than it has had it.

The text that a foreign interpreter runs executes this module's source before the package is there.
So nothing of the package is imported here.
"""

from __future__ import annotations

import _thread
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType

_WORKS_FOR_S = 0.005
"""So long a thread has the lock in any case, where others wait for it: Python's own interval."""
_REST_TO_WORK = 2
_LONGEST_REST_S = 0.05


class GentleImports:
    """Finds the modules that were sent along, for the thread that makes it."""

    def __init__(
        self,
        package: str,
        sources: Mapping[str, tuple[str, bytes]],
        wait: Callable[[float], object],
    ) -> None:
        """Prepares.

        Args:
            package: the folder in which the modules' files are said to lie.
            sources: by the name of each module its path in that folder, and its source.
            wait: returns after so many seconds.
        """
        self._package, self._sources, self._wait = package, sources, wait
        self._thread = _thread.get_ident()
        self._count: Callable[[float], object] | None = None
        self._piece_began = 0.0

    def __enter__(self) -> GentleImports:
        """Begins."""
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_: object) -> None:
        """Imports are again what they were."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    @contextmanager
    def resting(self, count: Callable[[float], object]) -> Iterator[None]:
        """Inside, modules are imported in pieces, with a rest after each.

        Args:
            count: is told the seconds that each piece took.
        """
        self._count, self._piece_began = count, time.thread_time()
        try:
            yield
        finally:
            self._count = None
            count(time.thread_time() - self._piece_began)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Where a module is; None where it was not sent, or another thread asks for it."""
        if name not in self._sources or _thread.get_ident() != self._thread:
            return None
        self._rest()
        within, source = self._sources[name]
        file = f"{self._package}/{within}"
        is_package = file.endswith("/__init__.py")
        spec = ModuleSpec(name, _SentModule(name, file, source), origin=file, is_package=is_package)
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [file.rpartition("/")[0]]
        return spec

    def _rest(self) -> None:
        worked_s = time.thread_time() - self._piece_began
        if self._count is None or worked_s < _WORKS_FOR_S:
            return
        self._count(worked_s)
        self._wait(min(_REST_TO_WORK * worked_s, _LONGEST_REST_S))
        self._piece_began = time.thread_time()


class _SentModule(SourceFileLoader):
    """A loader of one module, whose file is read only where somebody asks for it later."""

    def __init__(self, name: str, path: str, source: bytes) -> None:
        super().__init__(name, path)
        self._source: bytes | None = source

    def get_code(self, fullname: str) -> CodeType | None:
        """The module's code."""
        source, self._source = self._source, None
        if source is None:
            return super().get_code(fullname)
        return self.source_to_code(source, self.path)
