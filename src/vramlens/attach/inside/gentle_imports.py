"""Imports with a rest before each module, so that the program's threads get their turns.

A thread that imports has the interpreter's lock most of the time. PyTorch lets go of the lock at
each operation, and then waits up to 5 ms to get it back: a step of many operations would last as
long as all of the import. Only the folders of this package are searched in this way, and only for
the thread that asks for it.
"""

from __future__ import annotations

import sys
import time
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    SOURCE_SUFFIXES,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from typing import Any

from vramlens.attach.inside.pauses import Pauses
from vramlens.capture.process.own_thread import get_ident

_LOADERS = ((SourceFileLoader, SOURCE_SUFFIXES), (SourcelessFileLoader, BYTECODE_SUFFIXES))


class GentleImports:
    """Inside of it this thread imports modules of a package gently."""

    def __init__(self, package_folders: list[str], pauses: Pauses) -> None:
        """Prepares.

        Args:
            package_folders: where the package lies: its ``__path__``.
            pauses: what each piece of the imports is counted in.
        """
        self._folders, self._pauses = package_folders, pauses
        self._thread = get_ident()
        self._finders_before: dict[str, Any] = {}
        self._piece_began = 0.0

    def __enter__(self) -> None:
        """Begins."""
        for folder in self._folders:
            self.search_gently(folder)
        self._piece_began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        """Imports are again what they were."""
        self._end_piece()
        for folder, finder in self._finders_before.items():
            if finder is None:
                sys.path_importer_cache.pop(folder, None)
            else:
                sys.path_importer_cache[folder] = finder

    def search_gently(self, folder: str) -> None:
        """Has Python search a folder by a finder that rests."""
        if folder not in self._finders_before:
            self._finders_before[folder] = sys.path_importer_cache.get(folder)
            sys.path_importer_cache[folder] = _RestingFinder(folder, self)

    def rest(self) -> None:
        """Lets the program's threads run."""
        if get_ident() == self._thread:
            self._end_piece()
            self._pauses.rest()
            self._piece_began = time.perf_counter()

    def _end_piece(self) -> None:
        self._pauses.add(time.perf_counter() - self._piece_began)


class _RestingFinder(FileFinder):
    """A finder of Python's that rests before it looks for a module."""

    def __init__(self, folder: str, imports: GentleImports) -> None:
        super().__init__(folder, *_LOADERS)
        self._imports = imports

    def find_spec(self, fullname: str, target: Any = None) -> ModuleSpec | None:
        """Where a module is; None where it is not here."""
        self._imports.rest()
        spec = super().find_spec(fullname, target)
        if spec is not None:
            for folder in spec.submodule_search_locations or ():
                self._imports.search_gently(folder)
        return spec
