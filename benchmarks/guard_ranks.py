"""Ranks that train with a guard while one of them runs out of memory, again and again: does any
wait for ever?

    python benchmarks/guard_ranks.py [TRIES] [RANKS]

on the CPU over gloo, no GPU needed. Each try fails a forward or a backward, at the first or a later
part, on one rank
or on all. Prints one JSON object: tries, hangs (a try over 60 s), the largest difference of a
parameter between the ranks and from an undisturbed training, and the seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import tempfile
import time
from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from vramlens.recovery import guard, inject_oom

SAMPLES = 8


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)
    ).double()


def batch(step: int, rank: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step * 97 + rank)
    return {
        "x": torch.randn(SAMPLES, 6, dtype=torch.float64, generator=generator),
        "y": torch.randn(SAMPLES, 3, dtype=torch.float64, generator=generator),
    }


def loss_fn(net: Any, data: Any) -> torch.Tensor:
    return (net(data["x"]) - data["y"]).square().mean()


def undisturbed(tries: int, ranks: int) -> nn.Module:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range(tries):
        for rank in range(ranks):
            (loss_fn(net, batch(step, rank)) / ranks).backward()
        optimizer.step()
        optimizer.zero_grad()
    return net


def train(rank: int, ranks: int, tries: int, store: str, results: Any) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=60),
    )
    net = DistributedDataParallel(model())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    watch = guard(net, optimizer, timeout_s=60, grow_after=10**9)
    watch.verify(batch(0, rank), loss_fn)
    failures, longest = 0, 0.0
    for step in range(tries):
        if step % 3 == 0:
            watch.micro_batch = None  # as if there was room again, on all ranks
        failing = None if step % 7 == 6 else step % ranks  # now and then all of them
        began = time.monotonic()
        with inject_oom(("forward", "backward")[step % 2], at=1 + step % 3, rank=failing) as drill:
            watch.step(batch(step, rank), loss_fn)
        longest = max(longest, time.monotonic() - began)
        failures += drill.raised
    numbers = torch.cat([p.detach().flatten() for p in net.parameters()]).tolist()
    results.put((rank, failures, longest, numbers, watch.report().recovered))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def measured(tries: int, ranks: int) -> dict[str, Any]:
    context = torch.multiprocessing.get_context("fork")
    results = context.Queue()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        processes = [
            context.Process(target=train, args=(rank, ranks, tries, store, results), daemon=True)
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        try:
            rows: list[Any] = []
            while len(rows) < ranks and any(process.is_alive() for process in processes):
                with contextlib.suppress(queue.Empty):
                    rows.append(results.get(timeout=1))
            rows.sort()
        finally:
            for process in processes:
                process.join(20)
            hung = sum(process.is_alive() for process in processes)
            for process in processes:
                process.kill()
    truth = torch.cat([p.detach().flatten() for p in undisturbed(tries, ranks).parameters()])
    ours = [torch.tensor(row[3], dtype=torch.float64) for row in rows]
    return {
        "tries": tries,
        "ranks": ranks,
        "failures": sum(row[1] for row in rows),
        "hangs": hung + sum(row[2] > 60 for row in rows),
        "longest_step_s": round(max(row[2] for row in rows), 3),
        "ranks_differ_by": max(float((one - ours[0]).abs().max()) for one in ours),
        "undisturbed_differs_by": float((ours[0] - truth).norm() / truth.norm()),
        "exit_codes": [process.exitcode for process in processes],
        "seconds": round(time.monotonic() - began, 1),
    }


if __name__ == "__main__":
    tries_ = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    print(json.dumps(measured(tries_, int(sys.argv[2]) if len(sys.argv) > 2 else 2), indent=1))
