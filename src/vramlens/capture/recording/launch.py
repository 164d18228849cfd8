"""The launcher of this process: which job it belongs to, and which start of it this is."""

from __future__ import annotations

import os

_NAMES = (
    ("torchrun", "TORCHELASTIC_RUN_ID"),
    ("slurm", "SLURM_JOB_ID"),
    ("pbs", "PBS_JOBID"),
    ("lsf", "LSB_JOBID"),
    ("ray", "RAY_JOB_ID"),
)
_NO_NAME = ("", "none")
"""What torchrun calls a job that nobody named."""


def launch() -> dict[str, str | int | None]:
    """The launcher's name for the job, which start of it this is, and the launcher's process."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return {
        "job": _job(),
        "attempt": int(attempt) if attempt.isdecimal() else None,
        "launcher_pid": os.getppid(),
    }


def _job() -> str | None:
    for launcher, variable in _NAMES:
        name = os.environ.get(variable, "")
        if name not in _NO_NAME:
            return f"{launcher}:{name[:100]}"
    return None
