"""Changes to modules that only some programs import: made when they do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from vramlens.capture.triggers.on_import import when_imported


def after_import(name: str, change: Callable[[Any], None]) -> None:
    """Makes a change to a module once it is imported, or now if it is."""
    when_imported(name, lambda: change(sys.modules[name]))
