"""The folder in which a user's programs leave their sockets and figures, and every place where it
may be.

Whoever watches need not have the surroundings of the program: a scheduler sets no XDG_RUNTIME_DIR
where a shell has one, and after ``su`` it names a folder that is not there.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile

_MOST_FILES = 65_536
"""Of a folder. Programs that are killed leave their files, so that there may be many more than
run.
"""


def own_folder() -> str:
    """Where this user's folder belongs, by the environment of this process."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return os.path.join(base, f"vramlens-{os.getuid()}")


def prepared_folder() -> str:
    """This user's folder, made where it is missing; an absolute path, for the program may move
    elsewhere.

    Only the folder itself is made: where XDG_RUNTIME_DIR names one that is not there, it is in the
    folder for temporary files, where readers look too.

    Raises:
        OSError: it cannot be made, or is accessible to other users.
    """
    folder = os.path.abspath(own_folder())
    if not os.path.isdir(os.path.dirname(folder)):
        folder = os.path.join(os.path.abspath(tempfile.gettempdir()), os.path.basename(folder))
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    if not _is_private(folder, os.getuid()):
        raise PermissionError(f"{folder} is accessible to other users")
    return folder


def all_folders() -> list[str]:
    """Every folder where programs of this user may have written; for root, of every user."""
    uid = os.getuid() if hasattr(os, "getuid") else -1
    bases = [os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{uid}", tempfile.gettempdir(), "/tmp"]
    folders = [os.path.join(base, f"vramlens-{uid}") for base in bases if base]
    if uid == 0:
        users = [os.path.join("/run/user", name) for name in names_in("/run/user")]
        for base in ("/tmp", tempfile.gettempdir(), *users):
            folders += [
                os.path.join(base, name) for name in names_in(base) if name.startswith("vramlens-")
            ]
    return list(dict.fromkeys(folders))


def is_trusted(folder: str) -> bool:
    """True where nobody but this user can have written there; for root, nobody but one user."""
    uid = os.getuid() if hasattr(os, "getuid") else None
    return _is_private(folder, None if uid == 0 else uid)


def names_in(folder: str) -> list[str]:
    """The names in a folder, within bounds; nothing where it cannot be read."""
    try:
        return os.listdir(folder)[:_MOST_FILES]
    except OSError:
        return []


def _is_private(folder: str, uid: int | None) -> bool:
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return (
        stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077 and uid in (None, status.st_uid)
    )
