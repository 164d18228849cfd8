"""What recording costs: step time plain, under PyTorch's own recording and under vramlens, in
turns; and the dumps.

    python benchmarks/capture.py gpt|million [TURNS]

needs a CUDA GPU. ``gpt``: a GPT of 134 million parameters whose step keeps the GPU busy;
``million``: tiny operators and a deep stack, where the processor is what limits. The variants take
turns, each turn in another order, and each ratio is the median over the turns of a variant's median
step against the same turn's plain one: a machine that slows down in between slows all of them.
Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable

import torch
from gpt import GPT
from torch.nn import functional

from vramlens.capture.recording.recorder import WriteRequest
from vramlens.capture.recording.session import RecordingPlan
from vramlens.program import begin_watch

KIND = sys.argv[1]
TURNS = int(sys.argv[2]) if len(sys.argv) > 2 else 9
FOLDER = os.environ.get("OUT", "/tmp")


def deep(levels: int, call: Callable[[], None]) -> None:
    call() if levels == 0 else deep(levels - 1, call)


def workload() -> tuple[Callable[[], None], int]:
    """One step, and how many of them a turn has."""
    torch.manual_seed(0)
    gpu_bound = KIND == "gpt"
    vocabulary, batch, length = (32_000, 32, 1024) if gpu_bound else (2048, 2, 64)
    model = (
        GPT(vocabulary, 768, 12, 12, 1024).cuda()
        if gpu_bound
        else GPT(vocabulary, 128, 12, 8, 1024).cuda()
    )
    optimizer = torch.optim.AdamW(model.parameters(), foreach=gpu_bound)

    def loss() -> None:
        ids = torch.randint(0, vocabulary, (batch, length), device="cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=gpu_bound):
            out = model(ids)
            functional.cross_entropy(out.view(-1, vocabulary), ids.view(-1)).backward()

    def step() -> None:
        deep(0 if gpu_bound else 20, loss)
        optimizer.step()
        optimizer.zero_grad()

    return step, 8 if gpu_bound else 24


def timed(step: Callable[[], None], count: int) -> list[float]:
    times = []
    torch.cuda.synchronize()
    for _ in range(count):
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1e3)
    return times


def main() -> None:
    step, count = workload()
    recorder = begin_watch(
        RecordingPlan(output=FOLDER, max_events=10**6, blocks_only=True)
    ).recorder
    history = torch.cuda.memory._record_memory_history
    switches: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        "plain": (lambda: None, lambda: None),
        "pytorch": (lambda: history(stacks="python", max_entries=10**6), lambda: history(None)),
        "vramlens": (recorder.start, recorder.stop),
    }
    timed(step, 10)
    medians: dict[str, list[float]] = {name: [] for name in switches}
    names = list(switches)
    for turn in range(TURNS):
        for name in names[turn % 3 :] + names[: turn % 3]:
            on, off = switches[name]
            on()
            timed(step, 2)
            medians[name].append(statistics.median(timed(step, count)))
            off()

    def ratio(one: str, other: str) -> float:
        return round(
            statistics.median(a / b for a, b in zip(medians[one], medians[other], strict=True)), 4
        )

    found = {
        "workload": KIND,
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "pytorch_over_plain": ratio("pytorch", "plain"),
        "vramlens_over_plain": ratio("vramlens", "plain"),
        "vramlens_over_pytorch": ratio("vramlens", "pytorch"),
        "turns_ms": {
            name: [round(value, 2) for value in values] for name, values in medians.items()
        },
    }
    if KIND == "million":
        found["dump"] = dumps(step)
    print(json.dumps(found))


def dumps(step: Callable[[], None]) -> dict[str, object]:
    """The same million events written by both, in turns."""
    recorder = begin_watch(
        RecordingPlan(output=FOLDER, max_events=10**6, blocks_only=True)
    ).recorder
    recorder.start()
    timed(step, 400)
    theirs, ours = "/tmp/theirs.pickle", "/tmp/ours.vram"
    times: dict[str, list[float]] = {"pytorch": [], "vramlens": []}
    for _ in range(3):
        began = time.perf_counter()
        torch.cuda.memory._dump_snapshot(theirs)
        times["pytorch"].append(time.perf_counter() - began)
        began = time.perf_counter()
        recorder.write(WriteRequest("api", quiet=True), ours)
        times["vramlens"].append(time.perf_counter() - began)
    sizes = {"pytorch": os.path.getsize(theirs), "vramlens": os.path.getsize(ours)}
    snapshot = torch.cuda.memory._snapshot()
    recorder.stop()
    return {
        "events": sum(map(len, snapshot["device_traces"])),
        "seconds": {name: round(statistics.median(values), 2) for name, values in times.items()},
        "time_ratio": round(
            statistics.median(times["vramlens"]) / statistics.median(times["pytorch"]), 3
        ),
        "bytes": sizes,
        "size_ratio": round(sizes["vramlens"] / sizes["pytorch"], 3),
    }


main()
