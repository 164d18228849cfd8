"""What workers of other processes run in tests of the fleet."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from vramlens.errors import InputError
from vramlens.fleet.job import summary_of
from vramlens.ranks import RankSummary


def slowly(path: str, rank: int) -> RankSummary:
    time.sleep(0.15)
    return summary_of(path, rank)


def dies_once(folder: str, rank: int) -> int:
    """Kills its own process the first time that rank 3 is asked for."""
    mark = Path(folder) / "died"
    if rank == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return rank * 10


def always_dies(folder: str, rank: int) -> int:
    if rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return rank


def fails(folder: str, rank: int) -> int:
    if rank == 1:
        raise InputError("no such thing")
    if rank == 2:
        raise RuntimeError("two\nlines")
    return rank
