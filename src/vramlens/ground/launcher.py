"""The launcher of this process, by the variables that it sets: the rank, the job, which start of
the job this is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
WORLD_SIZE = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
LOCAL_SIZE = (
    "LOCAL_WORLD_SIZE",
    "SLURM_NTASKS_PER_NODE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
)
_JOBS = (
    ("torchrun", "TORCHELASTIC_RUN_ID"),
    ("slurm", "SLURM_JOB_ID"),
    ("pbs", "PBS_JOBID"),
    ("lsf", "LSB_JOBID"),
    ("ray", "RAY_JOB_ID"),
)
_NO_NAME = ("", "none")
"""What torchrun calls a job that nobody named."""


def number_in(variables: Mapping[str, str], *names: str) -> int | None:
    """The number in the first of these variables that holds one."""
    texts = (variables.get(name, "") for name in names)
    return next(
        (int(text) for text in texts if text.isascii() and text.isdecimal() and len(text) < 10),
        None,
    )


def launcher_of(variables: Mapping[str, str]) -> str:
    """The launcher's name; "none" where there is none, or a job of one task."""
    # Accelerate/utils/launch.py sets it always, and may run torchrun below.
    if "ACCELERATE_MIXED_PRECISION" in variables:
        return "accelerate"
    if "TORCHELASTIC_RUN_ID" in variables:  # torch.distributed.is_torchelastic_launched
        return "torchrun"
    if "OMPI_COMM_WORLD_RANK" in variables:
        return "mpi"
    if "SLURM_PROCID" in variables and variables.get("SLURM_NTASKS", "1") not in ("", "1"):
        return "slurm"
    if "PMI_RANK" in variables:
        return "mpi"
    return "environment" if "RANK" in variables and "WORLD_SIZE" in variables else "none"


def rank_in_environment() -> int | None:
    """The rank for names of files: a job of one task, which has rank 0, gets none."""
    rank = number_in(os.environ, "RANK")
    if rank is not None:
        return rank
    sizes = (os.environ.get(name, "1") for name in ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"))
    if all(size in ("", "1") for size in sizes):
        return None
    return number_in(os.environ, "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")


def job_name() -> str | None:
    """The launcher's name for the job: ``slurm:1234``."""
    for launcher, variable in _JOBS:
        name = os.environ.get(variable, "")
        if name not in _NO_NAME:
            return f"{launcher}:{name[:100]}"
    return None
