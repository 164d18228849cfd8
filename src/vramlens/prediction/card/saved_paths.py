"""Files that a predicted program saved, as the file system shows them to it: none is on disk."""

from __future__ import annotations

import builtins
import functools
import glob
import io
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_MARK = b"a checkpoint that vramlens predicted: "
_ANY_MARK = re.compile(re.escape(_MARK) + rb"([0-9]{1,18})")
_PATH_NAMES = ("path", "src", "dst")
"""What the functions below call their paths, in their order."""


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file that was saved.

    Attributes:
        content: what a load gives back.
        number: of the save, by which a file object has it.
        status: what ``os.stat`` says.
    """

    content: Any
    number: int
    status: os.stat_result

    @property
    def mark(self) -> bytes:
        """What stands in a file object for the content."""
        return _MARK + str(self.number).encode()


class SavedFiles:
    """All files that the program saved, by their full paths."""

    def __init__(self) -> None:
        self._at_path: dict[str, SavedFile] = {}
        self._saves: list[SavedFile] = []

    def keep(self, file: Any, content: Any) -> None:
        """Notes what is saved at a path, or in a file object that the program has opened."""
        saved = SavedFile(content, len(self._saves), _status(_bytes_of(content)))
        self._saves.append(saved)
        path = _path_of(file)
        if path is not None:
            self._at_path[path] = saved
        elif hasattr(file, "write"):
            file.write(saved.mark)

    def of(self, file: Any) -> SavedFile | None:
        """What was saved there; None where it was not by this program."""
        path = _path_of(file)
        if path is None:
            return self._in_object(file) if hasattr(file, "seek") else None
        if path in self._at_path or not os.path.isfile(path):
            return self._at_path.get(path)
        with open(path, "rb") as real:
            return self._in_object(real)

    def below(self, folder: Any) -> dict[str, SavedFile]:
        """The files of a folder, by their names."""
        parent = _path_of("." if folder is None else folder)
        return {
            os.path.basename(path): saved
            for path, saved in self._at_path.items()
            if os.path.dirname(path) == parent and not os.path.lexists(path)
        }

    def move(self, source: Any, target: Any) -> bool:
        """Whether a saved file was moved."""
        is_saved = self.copy(source, target)
        return is_saved and self.remove(source)

    def copy(self, source: Any, target: Any) -> bool:
        """Whether a saved file was copied."""
        saved = self._at_path.get(_path_of(source) or "")
        path = _path_of(target)
        if saved is None or path is None:
            return False
        if os.path.isdir(path):
            path = os.path.join(path, os.path.basename(os.fspath(source)))
        self._at_path[path] = saved
        return True

    def remove(self, file: Any) -> bool:
        """Whether a saved file was removed."""
        return self._at_path.pop(_path_of(file) or "", None) is not None

    def remove_below(self, folder: Any) -> None:
        """Forgets a folder's files."""
        parent = _path_of(folder)
        if parent is None:
            return
        inside = os.path.join(parent, "")
        for path in [path for path in self._at_path if path.startswith(inside)]:
            del self._at_path[path]

    def _in_object(self, file: Any) -> SavedFile | None:
        place = file.tell()
        begin = file.read(len(_MARK) + 20)
        file.seek(place)
        mark = _ANY_MARK.match(begin) if isinstance(begin, bytes) else None
        number = len(self._saves) if mark is None else int(mark[1])
        return self._saves[number] if number < len(self._saves) else None


def show_saved_files(files: SavedFiles) -> None:
    """Makes saved files be there for a program that looks at them, moves, copies or removes them;
    for good.
    """
    _show_status(files)
    _show_in_folders(files)
    _let_move(files)
    plain_open = builtins.open

    @functools.wraps(plain_open)
    def open_saved(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        try:
            return plain_open(file, mode, *args, **options)
        except FileNotFoundError:
            saved = files.of(file)
            if saved is None or "b" not in mode:
                raise
            return io.BytesIO(saved.mark)

    builtins.open = open_saved


def _show_status(files: SavedFiles) -> None:
    plain = os.stat

    @functools.wraps(plain)
    def status_of(path: Any, *args: Any, **options: Any) -> os.stat_result:
        try:
            return plain(path, *args, **options)
        except FileNotFoundError:
            folder, name = os.path.split(os.fspath(path))
            saved = files.below(folder or ".").get(name)
            if saved is None:
                raise
            return saved.status

    os.stat = status_of


def _show_in_folders(files: SavedFiles) -> None:
    plain_list, plain_scan = os.listdir, os.scandir

    @functools.wraps(plain_list)
    def listdir(path: Any = None) -> list[Any]:
        names: list[Any] = plain_list(path)
        return [*names, *files.below(path)] if isinstance(path, (str, os.PathLike)) else names

    @functools.wraps(plain_scan)
    def scandir(path: Any = None) -> Any:
        entries = files.below(path) if path is None or isinstance(path, (str, os.PathLike)) else {}
        if not entries:
            return plain_scan(path)
        folder = "." if path is None else os.fspath(path)
        with plain_scan(path) as real:
            shown = [*real, *(_Entry(name, folder, saved) for name, saved in entries.items())]
        return _Entries(shown)

    os.listdir, os.scandir = listdir, scandir
    globber = getattr(glob, "_StringGlobber", None)
    # Python 3.13 took os.scandir when it was imported; 3.14 looks it up, in a function of its own.
    if globber is not None and globber.scandir is plain_scan:
        globber.scandir = staticmethod(scandir)


class _Entries:
    """What ``os.scandir`` gives: to be gone through once."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *raised: Any) -> None:
        """Nothing is open."""

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def close(self) -> None:
        """Nothing is open."""


class _Entry:
    """A saved file as ``os.scandir`` shows one."""

    def __init__(self, name: str, folder: str, saved: SavedFile) -> None:
        self.name, self.path = name, os.path.join(folder, name)
        self._saved = saved

    def __fspath__(self) -> str:
        return self.path

    def is_file(self, **options: Any) -> bool:
        return True

    def is_dir(self, **options: Any) -> bool:
        return False

    def is_symlink(self) -> bool:
        return False

    def stat(self, **options: Any) -> os.stat_result:
        return self._saved.status


def _let_move(files: SavedFiles) -> None:
    """Lets a program move, copy and remove what it saved."""

    def put(module: Any, name: str, act: Callable[..., bool]) -> None:
        plain = getattr(module, name)

        @functools.wraps(plain)
        def done(*args: Any, **options: Any) -> Any:
            paths = [*args, *(options[key] for key in _PATH_NAMES if key in options)]
            # Paths below a descriptor are files on disk: shutil.rmtree removes them so.
            is_by_path = not any(key.endswith("dir_fd") for key in options)
            if is_by_path and act(*paths):  # a file of that name on disk stays as it is
                return paths[1] if len(paths) > 1 else None
            return plain(*args, **options)

        setattr(module, name, done)

    for name in ("remove", "unlink"):
        put(os, name, files.remove)
    for name in ("rename", "replace"):
        put(os, name, files.move)
    for name in ("copyfile", "copy", "copy2"):
        put(shutil, name, files.copy)
    trees: Any = shutil
    remove_tree = trees.rmtree

    @functools.wraps(remove_tree)
    def rmtree(path: Any, *args: Any, **options: Any) -> None:
        files.remove_below(path)
        remove_tree(path, *args, **options)

    trees.rmtree = rmtree


def _path_of(file: Any) -> str | None:
    """A file's full path; None where it is none of the file system's."""
    if isinstance(file, (str, os.PathLike)):
        return os.path.realpath(file)
    return None


def _status(size: int) -> os.stat_result:
    now = int(time.time())
    return os.stat_result((stat.S_IFREG | 0o644, 0, 0, 1, 0, 0, size, now, now, now))


def _bytes_of(content: Any) -> int:
    """Bytes of the tensors in containers."""
    if isinstance(content, dict):
        return sum(map(_bytes_of, content.values()))
    if isinstance(content, (list, tuple)):
        return sum(map(_bytes_of, content))
    return int(getattr(content, "nbytes", 0))
