"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Callable, Iterator
from typing import BinaryIO


@contextlib.contextmanager
def whole_file(
    path: str, *, put: Callable[[str, str], None] = os.replace, is_private: bool = False
) -> Iterator[BinaryIO]:
    """A file to write to, which takes its place in one step when the block ends without an error.

    Until then, and after an error, whatever was there before stays. A link is written through; the
    permissions of a file that is replaced are kept.

    Args:
        put: gives the written file (the first path) its place (the second).
        is_private: whether a file that was not there before is for its owner alone (mode 0600).

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    target = os.path.realpath(path)
    # A pipe, a device.
    if os.path.exists(target) and not os.path.isfile(target) and not os.path.isdir(target):
        with open(target, "wb") as file:
            yield file
        return
    # Two threads that write one file do not write into each other's.
    who = f"{threading.get_ident()}.{os.getpid()}"
    partial = os.path.join(
        os.path.dirname(target), f".{os.path.basename(target)[:40]}.{who}.partial"
    )
    try:
        with open(partial, "wb", opener=_opened_for_owner if is_private else None) as file:
            with contextlib.suppress(OSError):
                os.chmod(partial, stat.S_IMODE(os.stat(target).st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        put(partial, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


def _opened_for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
