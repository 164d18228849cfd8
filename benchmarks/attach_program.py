"""A program for ``benchmarks/attach.py`` that knows nothing of vramlens: ``MODE`` is threads,
loader or asyncio. It runs until its standard input is closed, then runs as many steps again alone
and prints both.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import random
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks
from torch.utils.data import DataLoader, Dataset

WIDTH = 48


class Rows(Dataset[Any]):
    """Rows that a worker makes."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Any:
        return torch.full((WIDTH,), (index % 97) / 97.0)


class Trainer:
    """A model, and steps."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        random.seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, 1)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self, batch: Any) -> list[float]:
        """One step: its loss, and a random number."""
        loss = self.model(batch + torch.randn(1)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return [loss.item(), random.random()]


def state() -> dict[str, Any]:
    """What an attach must leave as it was."""
    return {
        "path": list(sys.path),
        "modules": sorted(name for name in sys.modules if name.startswith("vramlens")),
        "optimizer_hooks": len(_global_optimizer_post_hooks),
        "forward_hooks": len(torch.nn.modules.module._global_forward_pre_hooks),
        "collector_callbacks": len(gc.callbacks),
        "collects": gc.isenabled(),
        "switch_interval": sys.getswitchinterval(),
        "main_names": sorted(sys.modules["__main__"].__dict__),
    }


def is_over() -> bool:
    """True once standard input is closed."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def batches(workers: int) -> Iterator[Any]:
    """Batches: from worker processes, or made here."""
    if workers:
        generator = torch.Generator().manual_seed(0)
        yield from DataLoader(Rows(), batch_size=16, num_workers=workers, generator=generator)
    while True:
        yield torch.ones(16, WIDTH)


def train(workers: int, ends: Callable[[int], bool]) -> list[list[float]]:
    """Steps until they end."""
    trainer = Trainer()
    said: list[list[float]] = []
    for batch in batches(workers):
        said.append(trainer.step(batch))
        if len(said) == 5 and "ready" not in _told:
            _told.append("ready")
            print("ready", flush=True)
        if ends(len(said)):
            return said
    return said


async def train_in_loop(ends: Callable[[int], bool]) -> list[list[float]]:
    """Steps in a thread of an event loop's."""
    loop = asyncio.get_running_loop()
    work = loop.run_in_executor(None, train, 0, ends)
    while not work.done():
        await asyncio.sleep(0.01)
    return await work


def in_c(is_done: threading.Event) -> None:
    """A thread that is in C most of the time."""
    generator = torch.Generator()
    while not is_done.is_set():
        torch.randn(64, 64, generator=generator) @ torch.ones(64, 64)
        time.sleep(0.001)


_told: list[str] = []


def main(mode: str) -> None:
    """Runs the mode."""
    ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
    torch.set_num_threads(1)
    is_done = threading.Event()
    if mode == "threads":
        threading.Thread(target=in_c, args=(is_done,), daemon=True).start()
    workers = 2 if mode == "loader" else 0
    before = state()

    def ends(_: int) -> bool:
        time.sleep(0.002)
        return is_over()

    said = asyncio.run(train_in_loop(ends)) if mode == "asyncio" else train(workers, ends)
    after = state()
    is_done.set()
    alone = train(workers, lambda count: count >= len(said))
    record = {"losses": said, "losses_alone": alone, "before": before, "after": after}
    print(json.dumps(record), flush=True)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
