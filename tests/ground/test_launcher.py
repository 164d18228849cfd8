"""What each part of the package takes from the variables that launchers set."""

from __future__ import annotations

import os

import pytest

from vramlens.capture.process_group import distributed_state
from vramlens.capture.recording.output_path import rank_of_process
from vramlens.capture.recording.process_facts import process_facts
from vramlens.recovery.batch_size.balanced_batches import BalancedBatchSampler

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
}
SLURM = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "4"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "2",
}
# The variables; launcher, rank, local rank and size of distributed_state; the rank in a file's
# name; rank, local rank, size, job and attempt in a recording; rank and size of a sampler.
TABLE = {
    "nothing": ({}, ("none", None, None, None), (None, None, None, None, None), (0, 1)),
    "torchrun": (TORCHRUN, ("torchrun", 5, 1, 8), (5, 1, 8, "torchrun:x", 2), (5, 8)),
    "by hand": (
        {"RANK": "1", "WORLD_SIZE": "2"},
        ("environment", 1, None, 2),
        (1, None, 2, None, None),
        (1, 2),
    ),
    "a rank alone": (
        {"RANK": "1"},
        ("none", None, None, None),
        (1, None, None, None, None),
        (0, 1),
    ),
    "accelerate": (
        {"ACCELERATE_MIXED_PRECISION": "no", "LOCAL_RANK": "0"},
        ("accelerate", None, 0, None),
        (None, 0, None, None, None),
        (0, 1),
    ),
    "slurm": (SLURM, ("slurm", 3, 1, 4), (3, None, None, "slurm:77", None), (0, 1)),
    "slurm, one task": (
        {**SLURM, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
        ("none", None, None, None),
        (None, None, None, "slurm:77", None),
        (0, 1),
    ),
    "torchrun below slurm": (
        {**TORCHRUN, **SLURM, "SLURM_NTASKS": "1"},
        ("torchrun", 5, 1, 8),
        (5, 1, 8, "torchrun:x", 2),
        (5, 8),
    ),
    "open mpi": (OPEN_MPI, ("mpi", 1, 0, 2), (1, None, None, None, None), (0, 1)),
    "open mpi, one process": (
        {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        ("mpi", 0, 0, 1),
        (None, None, None, None, None),
        (0, 1),
    ),
    "another mpi": (
        {"PMI_RANK": "1", "PMI_SIZE": "2"},
        ("mpi", 1, None, 2),
        (None, None, None, None, None),
        (0, 1),
    ),
    "no numbers": (
        {"RANK": "one", "WORLD_SIZE": "", "LOCAL_RANK": "-1", "TORCHELASTIC_RUN_ID": "none"},
        ("torchrun", None, None, None),
        (None, None, None, None, None),
        (0, 1),
    ),
}
NAMES = {name for variables, *_ in TABLE.values() for name in variables}


@pytest.mark.parametrize(("variables", "state", "recorded", "sampler"), TABLE.values(), ids=TABLE)
def test_what_is_taken_from_a_launcher(
    variables, state, recorded, sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    place = distributed_state()
    assert (place.launcher, place.rank, place.local_rank, place.world_size) == state
    assert distributed_state(variables).launcher == state[0]
    facts = process_facts(["train.py"])
    keys = ("rank", "local_rank", "world_size", "job", "attempt")
    assert tuple(facts[key] for key in keys) == recorded
    assert rank_of_process() == recorded[0]
    assert facts["launcher_pid"] == os.getppid()
    batches = BalancedBatchSampler([1] * 8, 1)
    assert (batches.rank, batches.num_replicas) == sampler
