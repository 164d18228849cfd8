"""Files that were there before a prediction: a predicted script removes none of them.

A Trainer removes its oldest checkpoints, a script clears the folder that it writes to. On the
machine where a script is predicted those may be the results of a real run.
"""

from __future__ import annotations

import errno
import functools
import os
import time
from typing import Any

_CLOCKS_APART_S = 1.0
"""How far the file system's clock may be behind."""


class OlderFiles:
    """Lets a program's removals of what is older than a moment pass without effect."""

    def __init__(self, began: float | None = None) -> None:
        """Begins.

        Args:
            began: what was last changed before this time is kept; by default now.
        """
        self._began = (time.time() if began is None else began) - _CLOCKS_APART_S
        self._kept_folders: set[str] = set()
        self._has_kept = False

    def keep(self) -> None:
        """Replaces what removes files and folders, and what makes folders, for good.

        ``shutil.rmtree`` uses these functions, too.
        """
        self._replace_unlink("remove")
        self._replace_unlink("unlink")
        self._replace_rmdir()
        self._replace_mkdir()

    def _replace_unlink(self, name: str) -> None:
        plain = getattr(os, name)

        @functools.wraps(plain)
        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            if os.lstat(path, dir_fd=dir_fd).st_ctime < self._began:
                self._has_kept = True
            else:
                plain(path, dir_fd=dir_fd)

        setattr(os, name, remove)

    def _replace_rmdir(self) -> None:
        plain = os.rmdir

        @functools.wraps(plain)
        def rmdir(path: Any, *, dir_fd: int | None = None) -> None:
            try:
                plain(path, dir_fd=dir_fd)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY or not self._has_kept:
                    raise
                if dir_fd is None:
                    self._kept_folders.add(os.path.realpath(os.fsdecode(path)))

        os.rmdir = rmdir

    def _replace_mkdir(self) -> None:
        plain = os.mkdir

        @functools.wraps(plain)
        def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            folder = None if dir_fd is not None else os.path.realpath(os.fsdecode(path))
            if folder in self._kept_folders:
                self._kept_folders.discard(folder)
            else:
                plain(path, mode, dir_fd=dir_fd)

        os.mkdir = mkdir
