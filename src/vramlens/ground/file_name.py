"""The names of files, of whichever system they are."""

from __future__ import annotations

import re


def base_name(file: str) -> str:
    """The last part of a path, of whichever system it is."""
    return re.split(r"[/\\]", file)[-1]
