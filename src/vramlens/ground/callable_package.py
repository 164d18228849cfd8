"""Packages that are functions, too: ``vramlens.view`` holds the page, and ``vramlens.view(...)`` makes
one.

Importing any module of a package puts the package itself into its parent, in the place of whatever
had its name. So the package must be what is called.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

_FUNCTIONS = "vramlens.questions"


class _CallablePackage(ModuleType):
    """A package that passes a call on to the function of its name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)

    @property
    def __wrapped__(self) -> Any:
        """The function, which ``inspect.signature`` and completion ask for."""
        return getattr(import_module(_FUNCTIONS), self.__name__.rpartition(".")[2])


def make_callable(package: str) -> None:
    """Makes a package answer calls with the function of its name in ``vramlens.questions``."""
    sys.modules[package].__class__ = _CallablePackage
