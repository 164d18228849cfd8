"""A training run that keeps the graph of every loss, for ``gpu_attach.py``; it knows nothing of
vramlens.

python gpu_program.py OUT.json STEPS DEVICE [fail]
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import sys
import threading
import time
from typing import Any

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks

WIDTH = 512
ROWS = 512
_SET_PTRACER, _ANYBODY = 0x59616D61, -1


class Trainer:
    """The model and what it keeps."""

    def __init__(self, device: str) -> None:
        layers: list[Any] = []
        for _ in range(8):
            layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.LayerNorm(WIDTH)]
        self.model = torch.nn.Sequential(*layers).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.device = device
        self.seen_outputs: list[Any] = []

    def step(self) -> float:
        """One step; its output stays, with the graph behind it."""
        batch = torch.randn(ROWS, WIDTH).to(self.device)
        output = self.model(batch)
        loss = (output - batch).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.seen_outputs.append(output)
        return loss.item()


def state() -> dict[str, Any]:
    """What an attach must leave as it was."""
    return {
        "path": list(sys.path),
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "modules": sorted(name for name in sys.modules if name.startswith("vramlens")),
        "optimizer_hooks": len(_global_optimizer_post_hooks),
        "forward_hooks": len(torch.nn.modules.module._global_forward_pre_hooks),
        "history": torch.cuda.is_available() and bool(torch._C._cuda_isHistoryEnabled()),
        "collector_callbacks": len(gc.callbacks),
        "collects": gc.isenabled(),
        "switch_interval": sys.getswitchinterval(),
        "meta_path": len(sys.meta_path),
        "main_names": sorted(name for name in sys.modules["__main__"].__dict__),
    }


def idle() -> None:
    """A thread in C most of the time."""
    while True:
        torch.randn(64, 64, generator=torch.Generator()).square().sum()
        time.sleep(0.005)


def main(out: str, steps: int, device: str, fails: bool) -> None:
    """Trains, and writes what happened."""
    ctypes.CDLL(None).prctl(_SET_PTRACER, ctypes.c_ulong(_ANYBODY), 0, 0, 0)
    torch.manual_seed(0)
    random.seed(0)
    threading.Thread(target=idle, daemon=True).start()
    trainer = Trainer(device)
    losses: list[float] = []
    gaps: list[float] = []
    before: dict[str, Any] = {}
    for number in range(steps):
        began = time.perf_counter()
        losses.append(trainer.step())
        time.sleep(0.01)
        gaps.append(time.perf_counter() - began)
        if number == 10:
            before = state()
            print("ready", flush=True)
    if fails:
        torch.empty(1 << 44, dtype=torch.uint8, device=device)
    record = {
        "losses": losses,
        "random": [random.random(), torch.rand(1).item(), torch.rand(1, device=device).item()],
        "before": before,
        "after": state(),
        "longest_step_s": max(gaps[10:]),
        "median_step_s": sorted(gaps[10:])[len(gaps[10:]) // 2],
    }
    with open(out, "w", encoding="utf-8") as file:
        json.dump(record, file)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], "fail" in sys.argv[4:])
