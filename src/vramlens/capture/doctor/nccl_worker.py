"""One rank of the check of collectives: whether their values are right, how quick they are, and
what they hold.

Started by ``collectives_check`` in a process of its own, one a GPU: what goes wrong here goes wrong
there.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

_SIZES_BYTES = (1 << 10, 1 << 20, 1 << 26)
_SECONDS_A_SIZE = {"nccl": 0.3, "gloo": 0.02}
_MOST_TURNS = 200


def main(address: str, rank: int, world: int, backend: str, timeout_s: float) -> dict[str, Any]:
    """The figures of this rank, ready for JSON.

    Args:
        address: ``host:port`` of rank 0's store.
        rank, world: of this process.
        backend: "nccl" on GPUs, "gloo" without.
        timeout_s: of one collective.
    """
    import torch
    import torch.distributed as dist

    gpu = backend == "nccl"
    device = torch.device("cuda", rank) if gpu else torch.device("cpu")
    before = 0
    if gpu:
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)  # the context is not NCCL's
        torch.cuda.synchronize()
        before = torch.cuda.mem_get_info(device)[0]
    dist.init_process_group(
        backend,
        init_method=f"tcp://{address}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if gpu else None,
    )
    dist.all_reduce(torch.ones(1, device=device))
    if gpu:
        torch.cuda.synchronize()
    context_bytes = before - torch.cuda.mem_get_info(device)[0] if gpu else None
    operations = _operations(dist, torch, device, rank, world)
    rows = []
    for name, (make, share) in operations.items():
        right = _is_right(name, make, torch, world)
        rows.append(
            {"name": name, "right": right, "speeds": _speeds(make, share, torch, dist, gpu)}
        )
    after = (
        before - torch.cuda.mem_get_info(device)[0] - torch.cuda.memory_reserved(device)
        if gpu
        else None
    )
    stats = {
        "rank": rank,
        "backend": backend,
        "library": _library(torch) if gpu else None,
        "held_at_start_bytes": context_bytes,
        "held_bytes": after,
        "counted": _counted(dist, device) if gpu else None,
        "operations": rows,
    }
    dist.barrier()
    dist.destroy_process_group()
    return stats


Call = Callable[[], Any]


def _speeds(
    make: Callable[[int], Call], share: float, torch: Any, dist: Any, gpu: bool
) -> list[dict[str, float]]:
    speeds = []
    for size in _SIZES_BYTES if gpu else _SIZES_BYTES[:2]:
        seconds = _seconds(make(size), torch, dist, gpu)
        speeds.append(
            {"bytes": size, "seconds": seconds, "bus_bytes_per_s": size / seconds * share}
        )
    return speeds


def _operations(
    dist: Any, torch: Any, device: Any, rank: int, world: int
) -> dict[str, tuple[Callable[[int], Call], float]]:
    """By name: what makes a call on buffers of a size (in bytes of float32), and the share of it
    that a link carries.

    The shares are those of nccl-tests' doc/PERFORMANCE.md: what "bus bandwidth" means.
    """

    def numbers(size: int) -> int:
        return max(world, size // 4 // world * world)

    def all_reduce(size: int) -> Call:
        values = torch.full((numbers(size),), float(rank + 1), device=device)
        return lambda: (dist.all_reduce(values), values)[1]

    def broadcast(size: int) -> Call:
        values = torch.full((numbers(size),), float(rank + 1), device=device)
        return lambda: (dist.broadcast(values, 0), values)[1]

    def all_gather(size: int) -> Call:
        values = torch.full((numbers(size) // world,), float(rank + 1), device=device)
        out = torch.empty(numbers(size), device=device)
        return lambda: (dist.all_gather_into_tensor(out, values), out)[1]

    def reduce_scatter(size: int) -> Call:
        values = torch.full((numbers(size),), float(rank + 1), device=device)
        out = torch.empty(numbers(size) // world, device=device)
        return lambda: (dist.reduce_scatter_tensor(out, values), out)[1]

    def all_to_all(size: int) -> Call:
        values = torch.full((numbers(size),), float(rank + 1), device=device)
        out = torch.empty_like(values)
        return lambda: (dist.all_to_all_single(out, values), out)[1]

    part = (world - 1) / world
    return {
        "all_reduce": (all_reduce, 2 * part),
        "all_gather": (all_gather, part),
        "reduce_scatter": (reduce_scatter, part),
        "broadcast": (broadcast, 1.0),
        "all_to_all": (all_to_all, part),
    }


def _is_right(name: str, make: Callable[[int], Call], torch: Any, world: int) -> bool:
    """True where the values that a call leaves are those that it should."""
    got = make(4 * 1024 * world)().cpu()
    ranks = torch.arange(1.0, world + 1)
    expected = {
        "all_reduce": torch.full_like(got, float(ranks.sum())),
        "reduce_scatter": torch.full_like(got, float(ranks.sum())),
        "broadcast": torch.full_like(got, 1.0),
        "all_gather": ranks.repeat_interleave(len(got) // world),
        "all_to_all": ranks.repeat_interleave(len(got) // world),
    }[name]
    return bool(torch.equal(got, expected))


def _seconds(call: Call, torch: Any, dist: Any, gpu: bool) -> float:
    """The seconds that a call takes on the slowest rank, on average."""

    def finish() -> None:
        if gpu:
            torch.cuda.synchronize()

    call()
    finish()
    began = time.perf_counter()
    call()
    finish()
    once = torch.tensor([max(time.perf_counter() - began, 1e-6)], device="cuda" if gpu else "cpu")
    dist.all_reduce(once, dist.ReduceOp.MAX)  # all ranks take the same number of turns
    turns = int(min(_MOST_TURNS, max(2, _SECONDS_A_SIZE["nccl" if gpu else "gloo"] / float(once))))
    dist.barrier()
    finish()
    began = time.perf_counter()
    for _ in range(turns):
        call()
    finish()
    mean = torch.tensor([(time.perf_counter() - began) / turns], device="cuda" if gpu else "cpu")
    dist.all_reduce(mean, dist.ReduceOp.MAX)
    return float(mean)


def _library(torch: Any) -> str:
    return ".".join(map(str, torch.cuda.nccl.version()))


def _counted(dist: Any, device: Any) -> int | None:
    """The bytes that NCCL itself says its communicators hold (PyTorch 2.12 and NCCL 2.29.7, or
    newer); else None.
    """
    try:
        stats = dist.group.WORLD._get_backend(device).memory_stats()
        return int(stats["total"])
    except Exception:  # older ones have no such call, and say so in many ways
        return None


def print_answer() -> None:
    """Prints what this rank found, as a line of JSON."""
    address, rank, world, backend, timeout_s = sys.argv[2:7]
    sys.stdout.write(
        json.dumps(main(address, int(rank), int(world), backend, float(timeout_s))) + "\n"
    )
