"""The functions that a script offers to be asked with any batch: ``vramlens predict --batch N``
and ``vramlens strategies``.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vramlens.errors import InputError

_NEEDED = ("model_fn", "make_batch", "loss_fn")
_RUN_NAME = "__vramlens__"
"""The script's ``__name__``: what stands under ``if __name__ == "__main__"`` does not run."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a script defines at its top; the parameters of ``vramlens.predict``."""

    model_fn: Callable[[], Any]
    make_batch: Callable[[int], Any]
    loss_fn: Callable[[Any, Any], Any]
    optimizer_fn: Callable[[Any], Any] | None


def hooks_of(path: str, needs_optimizer: bool = False) -> Hooks:
    """The functions that a script defines.

    Raises:
        InputError: it cannot be read or run, or defines not all of them.
    """
    if not os.path.isfile(path):
        raise InputError(f"{path}: no such script")
    needed = (*_NEEDED, "optimizer_fn") if needs_optimizer else _NEEDED
    _refuse_without(path, _names_not_in_text(path, needed))  # before a plain script would run
    names = _names_of(path)
    _refuse_without(path, [name for name in needed if not callable(names.get(name))])
    return Hooks(
        model_fn=names["model_fn"],
        make_batch=names["make_batch"],
        loss_fn=names["loss_fn"],
        optimizer_fn=names.get("optimizer_fn"),
    )


def _names_of(path: str) -> dict[str, Any]:
    """What a script defines at its top.

    Raises:
        InputError: it cannot be run so far.
    """
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    sys.argv = [path]
    try:
        return runpy.run_path(path, run_name=_RUN_NAME)
    except (Exception, SystemExit) as error:
        first_line = str(error).strip().partition("\n")[0][:200]
        raise InputError(
            f"{path}: --batch runs the top of the script, which failed with"
            f" {type(error).__name__}: {first_line}; leave --batch out to predict it as it is"
        ) from None


def _names_not_in_text(path: str, needed: Sequence[str]) -> list[str]:
    """The names that a script neither says nor may import with a star."""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    return [] if "import *" in text else [name for name in needed if name not in text]


def _refuse_without(path: str, missing: Sequence[str]) -> None:
    if missing:
        raise InputError(
            f"{path}: --batch needs functions at the top of the script, and it does not define"
            f" {', '.join(missing)}: leave --batch out. An option of the script itself goes after"
            " --"
        )
