"""Paths as a person at a terminal would type them: those below the working directory relative to it.

A recording has the whole path of each line. An answer would name one file in several forms: whole in
a sentence, without folders in a table. JSON and the formats for editors keep whole paths.
"""

from __future__ import annotations

import os
import re
from dataclasses import fields, is_dataclass, replace
from typing import Any

from vramlens.report.document import Command, Document

_NO_PATH_BEFORE = r"(?<![\w./\\~-])"


def near(document: Document) -> Document:
    """The document with paths relative to the working directory, but for commands to paste."""
    try:
        folder = os.getcwd()
    except OSError:  # it was removed
        return document
    if os.path.dirname(folder) == folder:  # the root: everything is below it
        return document
    below = re.compile(_NO_PATH_BEFORE + re.escape(folder + os.sep))
    parts = [part if isinstance(part, Command) else _near(part, below) for part in document.parts]
    return replace(document, parts=tuple(parts))


def _near(value: Any, below: re.Pattern[str]) -> Any:
    """A part, or what it consists of, with its texts changed."""
    if type(value) is str:  # no word of a closed vocabulary
        return below.sub("", value)
    if isinstance(value, tuple):
        return tuple(_near(item, below) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        changes = {}
        for field in fields(value):
            before = getattr(value, field.name)
            after = _near(before, below)
            if after != before:
                changes[field.name] = after
        return replace(value, **changes) if changes else value
    return value
