"""NCCL's flight records, and its watchdog's lines, of jobs in which one rank leaves the common order
of collectives.
"""

from __future__ import annotations

import pickle
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from support.simulated_training import LOOP, START_US, TORCH, frame

COLLECTIVES = frame(f"{TORCH}/distributed/distributed_c10d.py", 3068, "all_reduce")
BACKWARD = (COLLECTIVES, frame("train/train.py", 64, "backward"), *LOOP)
STRAY = (COLLECTIVES, frame("train/log.py", 22, "mean_over_ranks"), *LOOP)
WAYS = ("extra", "skipped", "other_size", "other_type")


@dataclass(frozen=True)
class Call:
    """A collective as a rank called it."""

    name: str
    elements: int
    frames: tuple[dict[str, Any], ...] = BACKWARD


def common_calls(chance: random.Random) -> list[Call]:
    """Gradients of some steps in buckets, and a loss at each one's end."""
    buckets = [chance.randrange(1 << 18, 1 << 24) for _ in range(chance.randrange(2, 5))]
    step = [Call("all_reduce", size) for size in buckets] + [Call("all_reduce", 1)]
    return step * 3


def odd_calls(calls: list[Call], way: str, at: int) -> list[Call]:
    """What the rank at fault called instead."""
    if way == "extra":
        return [*calls[:at], Call("all_reduce", 3, STRAY), *calls[at:]]
    if way == "skipped":
        return [*calls[:at], *calls[at + 1 :]]
    if way == "other_size":
        changed = replace(calls[at], elements=calls[at].elements + 4096)
    else:
        changed = Call("broadcast", calls[at].elements, STRAY)
    return [*calls[:at], changed, *calls[at + 1 :]]


def desynchronized_records(folder: Path, world: int, odd: int, chance: random.Random) -> str:
    """Writes each rank's flight record; how the odd one left the order."""
    calls = common_calls(chance)
    way = chance.choice(WAYS)
    # Calls of different sizes next to each other, so that one more or less is a difference.
    at = chance.randrange(3, len(calls) - 3)
    changed = odd_calls(calls, way, at)
    wrong = next(n for n in range(at, len(calls)) if _differ(changed[n], calls[n]))
    for rank in range(world):
        own = changed if rank == odd else calls
        data = pickle.dumps(_record(own[: wrong + 2], wrong, world, chance), 4)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
    return way


def _differ(one: Call, other: Call) -> bool:
    return (one.name, one.elements) != (other.name, other.elements)


def _record(calls: list[Call], wrong: int, world: int, chance: random.Random) -> dict[str, Any]:
    late = chance.randrange(1_000_000)
    entries = [_entry(n, call, n < wrong, late) for n, call in enumerate(calls)]
    ranks = str(list(range(world)))
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "comm_lib_version": "2.28.9",
        "pg_status": {
            "0": {
                "last_enqueued_collective": len(calls),
                "last_started_collective": -1,
                "last_completed_collective": wrong,
            }
        },
        "entries": entries,
    }


def _entry(number: int, call: Call, completed: bool, late: int) -> dict[str, Any]:
    created = (START_US + number * 40_000) * 1000 + late
    return {
        "frames": list(call.frames), "record_id": number, "pg_id": 0,
        "process_group": ("0", "default_pg"), "thread_name": "python", "thread_id": "1402",
        "collective_seq_id": number + 1, "p2p_seq_id": 0, "op_id": number + 1,
        "profiling_name": f"nccl:{call.name}", "time_created_ns": created,
        "input_sizes": [[call.elements]], "input_dtypes": ["Float"],
        "output_sizes": [[call.elements]], "output_dtypes": ["Float"],
        "state": "completed" if completed else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": created + 5_000_000 if completed else None,
        "retired": completed, "timeout_ms": 600_000, "is_p2p": False,
    }  # fmt: skip


WATCHDOG = (
    "[rank{rank}]:[E1122 10:00:00.{rank:06d} ProcessGroupNCCL.cpp:685] [Rank {rank}] Watchdog"
    " caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={name},"
    " NumelIn={elements}, NumelOut={elements}, Timeout(ms)=600000) ran for 600029 milliseconds"
    " before timing out.\n"
)


def watchdog_log(world: int, odd: int, chance: random.Random) -> str:
    """What a launcher's log holds of it, between lines of the program."""
    seq, elements = chance.randrange(5, 9000), chance.randrange(1 << 18, 1 << 24)
    lines = []
    for rank in range(world):
        name, size = "ALLREDUCE", elements
        if rank == odd:
            name, size = chance.choice((("ALLREDUCE", 1), ("BROADCAST", elements)))
        lines.append(WATCHDOG.format(rank=rank, seq=seq, name=name, elements=size))
    chance.shuffle(lines)
    return "epoch 3 loss 1.25\n" + "".join(lines)
