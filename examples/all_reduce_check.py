"""Checks that every rank of a job can reach every other: names the ranks that are missing, instead
of hanging.

    torchrun --nproc-per-node 8 examples/all_reduce_check.py

What is often missing in recipes: a group on the CPU that can say who did not come
(``monitored_barrier``; NCCL alone waits), a check of the result on every rank and not only on rank
0, several sizes, waiting for the GPU before judging, and an exit code.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

SIZES = (1, 1 << 10, 1 << 20)
PATIENCE = timedelta(seconds=30)


def check(device: torch.device) -> list[str]:
    """What is wrong, seen from this rank; nothing where all is well."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wrong = []
    for size in SIZES:
        tensor = torch.full((size,), float(rank + 1), device=device)
        dist.all_reduce(tensor)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        low, high, expected = tensor.min().item(), tensor.max().item(), ranks * (ranks + 1) / 2
        if low != expected or high != expected:
            wrong.append(
                f"rank {rank}: all_reduce of {size:,} numbers gave {low} to {high}, not {expected}"
            )
    return wrong


def main() -> int:
    """Joins the job, checks, says on rank 0 how it went."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if has_gpu else "gloo", timeout=PATIENCE)
    try:
        on_the_cpu = dist.new_group(backend="gloo", timeout=PATIENCE)
        dist.monitored_barrier(
            on_the_cpu, timeout=PATIENCE, wait_all_ranks=True
        )  # raises with the missing ranks
        found: list[list[str]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(
            found, check(device), group=on_the_cpu
        )  # by way of the CPU: no GPU memory for messages
        wrong = [line for lines in found for line in lines]
        if dist.get_rank() == 0:
            print(
                "\n".join(wrong)
                or f"all_reduce is right on all {dist.get_world_size()} ranks, {device.type}"
            )
        return 1 if wrong else 0
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
