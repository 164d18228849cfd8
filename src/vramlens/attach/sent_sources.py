"""The source text of what runs in the process, in one file that is sent along.

A process whose main thread asks the system for something every few microseconds gives up the
interpreter's lock each time, and has it back before another thread is awake. A thread of ours that
reads a file there waits for the lock again after each call: 150 modules took more than a minute.
"""

from __future__ import annotations

import marshal
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_FOLDERS = ("attach", "capture", "ground", "leak", "live")
_FORMAT = 4  # of ``marshal``, the same for such data from Python 3.4 to 3.14


def sent_sources() -> bytes:
    """For ``marshal``: by the name of each module its path in the package, and its source."""
    paths = list(_PACKAGE.glob("*.py"))
    for folder in _FOLDERS:
        paths += (_PACKAGE / folder).rglob("*.py")
    sources = {}
    for path in paths:
        within = path.relative_to(_PACKAGE)
        sources[_module_name(within)] = (within.as_posix(), path.read_bytes())
    return marshal.dumps(sources, _FORMAT)


def _module_name(within: Path) -> str:
    parts = [_PACKAGE.name, *within.with_suffix("").parts]
    if parts[-1] == "__init__":
        del parts[-1]
    return ".".join(parts)
