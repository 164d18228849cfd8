"""Slurm: names of files that no two tasks of a job share, and that say which task wrote them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")


def job_id(environment: Mapping[str, str] | None = None) -> str | None:
    """The job's number, ``1234``, or ``1234_7`` in an array; None outside of Slurm."""
    variables = os.environ if environment is None else environment
    array, task = variables.get("SLURM_ARRAY_JOB_ID"), variables.get("SLURM_ARRAY_TASK_ID")
    number = f"{array}_{task}" if array and task else variables.get("SLURM_JOB_ID")
    return _NOT_IN_NAMES.sub("-", number) if number else None


def file_name(suffix: str, environment: Mapping[str, str] | None = None) -> str:
    """A name such as ``job1234-rank00003.jsonl``.

    Of a job that was started again: ``job1234-restart1-rank00003.jsonl``. Outside of Slurm it is
        ``pid4711.jsonl``.

    Args:
        suffix: the ending, with its dot.
        environment: read instead of ``os.environ``.
    """
    variables = os.environ if environment is None else environment
    job = job_id(variables)
    if job is None:
        return f"pid{os.getpid()}{suffix}"
    parts = [f"job{job}"]
    restarts = variables.get("SLURM_RESTART_COUNT", "0")
    if restarts.isdecimal() and int(restarts):
        parts.append(f"restart{int(restarts)}")
    rank = variables.get("SLURM_PROCID", "")
    if rank.isdecimal():
        parts.append(f"rank{int(rank):05d}")
    return "-".join(parts) + suffix
