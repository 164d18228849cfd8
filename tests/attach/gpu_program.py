"""A training run that keeps the graph of every loss, for ``gpu_attach.py``; it knows nothing of
vramlens.

python gpu_program.py OUT.json DEVICE [fail]        trains until its standard input is closed
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import select
import sys
import threading
import time
from typing import Any

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks

_READY_AFTER = 10  # steps
_SETTLES_WITHIN_S = 20.0
_SET_PTRACER, _ANYBODY = 0x59616D61, -1


class Trainer:
    """The model and what it keeps."""

    def __init__(self, device: str) -> None:
        layers: list[Any] = []
        self.width = width = 64 if device == "cpu" else 512
        for _ in range(8):
            layers += [torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.LayerNorm(width)]
        self.model = torch.nn.Sequential(*layers).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.device = device
        self.seen_outputs: list[Any] = []

    def step(self) -> float:
        """One step; its output stays, with the graph behind it."""
        batch = torch.randn(self.width, self.width).to(self.device)
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
        "modules": sorted(name for name in list(sys.modules) if name.startswith("vramlens")),
        "optimizer_hooks": len(_global_optimizer_post_hooks),
        "forward_hooks": len(torch.nn.modules.module._global_forward_pre_hooks),
        "history": torch.cuda.is_available() and bool(torch._C._cuda_isHistoryEnabled()),
        "collector_callbacks": len(gc.callbacks),
        "collects": gc.isenabled(),
        "switch_interval": sys.getswitchinterval(),
        "meta_path": len(sys.meta_path),
        "main_names": sorted(sys.modules["__main__"].__dict__),
    }


def idle(is_done: threading.Event) -> None:
    """A thread in C most of the time."""
    while not is_done.is_set():
        torch.randn(64, 64, generator=torch.Generator()).square().sum()
        time.sleep(0.005)


def settled_state(before: dict[str, Any]) -> dict[str, Any]:
    """The state once it is as before, or after some seconds as it then is: who was interrupted may
    still be leaving.
    """
    deadline = time.monotonic() + _SETTLES_WITHIN_S
    after = state()
    while after != before and time.monotonic() < deadline:
        time.sleep(0.05)
        after = state()
    return after


def goes_on() -> bool:
    """True until whoever started this closes its standard input."""
    return not select.select([sys.stdin], [], [], 0)[0]


def main(out: str, device: str, fails: bool) -> None:
    """Trains, and writes what happened."""
    ctypes.CDLL(None).prctl(_SET_PTRACER, ctypes.c_ulong(_ANYBODY), 0, 0, 0)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    is_done = threading.Event()
    # Ended before the interpreter is: a daemon inside of PyTorch's C++ would abort then.
    beside = threading.Thread(target=idle, args=(is_done,))
    beside.start()
    trainer = Trainer(device)
    losses: list[tuple[float, float]] = []
    seconds: list[float] = []
    before: dict[str, Any] = {}
    while goes_on():
        began = time.perf_counter()
        losses.append((trainer.step(), random.random()))
        time.sleep(0.01)
        seconds.append(time.perf_counter() - began)
        if len(losses) == _READY_AFTER:
            before = state()
            print("ready", flush=True)
    after = settled_state(before)
    is_done.set()
    beside.join()
    if fails:
        torch.empty(1 << 44, dtype=torch.uint8, device=device)
    seconds = sorted(seconds[_READY_AFTER:])
    record = {
        "losses": losses,
        "before": before,
        "after": after,
        "longest_step_s": seconds[-1],
        "median_step_s": seconds[len(seconds) // 2],
    }
    with open(out, "w", encoding="utf-8") as file:
        json.dump(record, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], "fail" in sys.argv[3:])
