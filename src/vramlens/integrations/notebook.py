"""Notebooks: ``%%vramlens`` records a cell, and shows its verdict and picture below it.

%load_ext vramlens

%%vramlens -o epoch.vram
train_one_epoch(model, loader)
"""

from __future__ import annotations

import argparse
import os
import shlex
import tempfile
from importlib import import_module
from typing import Any, NoReturn

from vramlens.errors import VramlensError

_NOTHING = "vramlens: this cell requested no GPU memory, so there is nothing to show"


def add_magic(shell: Any) -> None:
    """Adds the cell magic ``%%vramlens`` to an IPython shell; ``%load_ext vramlens`` calls it."""

    def vramlens(line: str, cell: str) -> None:
        """Records the cell; shows where its GPU memory went, and the picture."""
        _record_cell(shell, line, cell)

    shell.register_magic_function(vramlens, "cell", "vramlens")


def _record_cell(shell: Any, line: str, cell: str) -> None:
    """Runs a cell under a recording and shows what that says, also when the cell fails.

    Raises:
        UsageError: the magic's own line makes no sense; the cell has not run.
    """
    from vramlens.program import record

    options = _options(line)
    with tempfile.TemporaryDirectory() as folder:
        path = options.output or os.path.join(folder, "cell.vram")
        written = path if path.endswith(".vram") else f"{path}.vram"
        before = _version_of(written)
        with record(written):
            shell.run_cell(cell)  # shows the cell's result, or its error, as IPython does
        if _version_of(written) == before:
            _show(_NOTHING)
            return
        _show_recording(written, has_picture=not options.no_picture)


def _show_recording(path: str, *, has_picture: bool) -> None:
    """Shows verdict and picture; where they cannot be made, one line says why."""
    from vramlens import api, questions

    try:
        recording = api.load(path)
        _show(api.explain_recording(recording))
        if has_picture:
            _show(questions.view(recording))
    except VramlensError as error:
        _show(f"vramlens: {error}")


def _show(answer: object) -> None:
    if isinstance(answer, str):
        print(answer)  # noqa: T201 -- a cell's output
    else:
        import_module("IPython.display").display(answer)


def _version_of(path: str) -> tuple[int, int] | None:
    """Which file lies at a path; None where there is none."""
    try:
        state = os.stat(path)
    except OSError:
        return None
    return state.st_ino, state.st_mtime_ns


class _Parser(argparse.ArgumentParser):
    """Raises what is wrong: argparse would end the notebook's kernel."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; it takes -o FILE and --no-picture")


def _options(line: str) -> argparse.Namespace:
    parser = _Parser(prog="%%vramlens", add_help=False)
    parser.add_argument("-o", "--output")
    parser.add_argument("--no-picture", action="store_true")
    try:
        return parser.parse_args(shlex.split(line))
    except ValueError as error:
        refusal: Exception = import_module("IPython.core.error").UsageError(f"%%vramlens: {error}")
        raise refusal from None  # of IPython's own kind, which it shows as one line
