"""What leak watching costs: idle, per step; and one report on a heap of a million Python objects.

python benchmarks/leaks_live.py [--steps 400]
"""

from __future__ import annotations

import argparse
import gc
import resource
import statistics
import time
from typing import Any

import torch

import vramlens


class Item:
    """One of many Python objects."""

    def __init__(self, number: int) -> None:
        self.values = [number]
        self.named = {"number": [number]}


class Trainer:
    def __init__(self, width: int) -> None:
        layers: list[Any] = []
        for _ in range(6):
            layers += [torch.nn.Linear(width, width), torch.nn.ReLU()]
        self.model = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.width = width

    def step(self) -> float:
        loss = self.model(torch.randn(256, self.width)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def idle(steps: int) -> None:
    """Steps with and without a watch, in turns of 20; wall times of both and what ``step()``
    itself took.
    """
    trainer = Trainer(512)
    for _ in range(10):
        trainer.step()
    plain: list[float] = []
    watched: list[float] = []
    calls: list[float] = []
    watch = vramlens.LeakWatch()
    for turn in range(max(steps // 20, 2)):
        for _ in range(20):
            began = time.perf_counter()
            trainer.step()
            if turn % 2:
                called = time.perf_counter()
                watch.step()
                ended = time.perf_counter()
                calls.append(ended - called)
                watched.append(ended - began)
            else:
                plain.append(time.perf_counter() - began)
        if turn % 2 == 0:
            watch._observer.end()  # what is between two turns is no step
    for name, times in (("without", plain), ("with", watched)):
        middle, mean = statistics.median(times) * 1e3, statistics.mean(times) * 1e3
        print(f"a step {name} a watch: median {middle:.2f} ms, mean {mean:.2f} ms")
    share = sum(calls) / sum(watched)
    print(
        f"of that step() itself:  {statistics.median(calls) * 1e6:.0f} us median, {share:.2%} of all time"
    )


def report(objects: int) -> None:
    """One report on a heap of so many Python objects."""
    crowd = [Item(number) for number in range(objects // 6)]
    history: list[Any] = []
    layer = torch.nn.Linear(100, 10)
    watch = vramlens.LeakWatch()
    for _ in range(12):
        history.append(layer(torch.randn(10, 100)).sum())
        watch.step()
    gc.collect()
    tracked = len(gc.get_objects())
    times = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3):
        wall, cpu = time.perf_counter(), time.process_time()
        found = watch.report()
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = min(times)
    owner = found.found[0].owner
    print(
        f"a report with {tracked:,} tracked objects ({len(crowd):,} x 5 of ours): {wall:.2f} s wall, {cpu:.2f} s CPU,"
    )
    print(
        f"  {(after - before) / 1024:.0f} MiB more at its peak; owner {owner.name if owner else None}"
    )
    began = time.perf_counter()
    found_chain = vramlens.who_holds(history[3])
    print(f"who_holds: {time.perf_counter() - began:.2f} s ({found_chain.owners[0].name})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--objects", type=int, default=1_000_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report(arguments.objects)
    idle(arguments.steps)
