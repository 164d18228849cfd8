"""Input: a recording read from a file, with a bar on standard error where it takes a while."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vramlens.analyses.compare.compared_run import Run
    from vramlens.trace import Trace


def read_recording(path: str) -> Trace:
    """The recording in a file; ``-`` is standard input.

    Raises:
        InputError, UsageError: as for ``vramlens.load``.
    """
    from vramlens import api
    from vramlens.report.progress import reading_progress

    with reading_progress("reading") as progress:
        return api.load(path, progress=progress)


def read_run(path: str, device: int | None = None) -> Run:
    """One recording, ready to be compared.

    Raises:
        InputError, UsageError: as for ``vramlens.load``.
    """
    from vramlens.analyses.compare.compared_run import run_of

    return run_of(read_recording(path), device)
