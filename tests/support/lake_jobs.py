"""Small jobs to put into lakes: real recordings with the facts of made jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.recordings import data_of
from support.vram_files import vram

CLEAN, LEAK = "ranks/leak_rank1/leak_rank1.rank0", "ranks/leak_rank1/leak_rank1.rank1"
START_US = 1_700_000_000_000_000


def write_job(
    folder: Path, ranks: int, *, start_us: int = START_US, world: int | None = None, **facts: Any
) -> Path:
    """Writes the recordings of a job whose rank 1 leaks, beside what the folder holds."""
    folder.mkdir(parents=True, exist_ok=True)
    attempt = facts.get("attempt")
    for rank in range(ranks):
        meta = {
            "rank": rank,
            "world_size": ranks if world is None else world,
            "pid": start_us % 99_991 + rank,
            "started_us": start_us + rank,
            "written_us": start_us + 60_000_000,
            "launcher_pid": 77,
            **facts,
        }
        suffix = "" if not attempt else f"-{attempt + 1}"
        vram(folder / f"rank{rank:05d}{suffix}.vram", data_of(LEAK if rank == 1 else CLEAN), meta)
    return folder
