"""PyTorch, imported when the first of its names is used: the package can be imported on a
machine without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class _LateTorch:
    """Stands for the module ``torch``."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module("torch"), name)
        self.__dict__[name] = value  # from now on as quick as any attribute
        return value


torch = _LateTorch()
