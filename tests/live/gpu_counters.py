"""On a GPU, by hand: python tests/live/gpu_counters.py [NAME...]. What only counters show, made
by real programs.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import vramlens
from vramlens.live.counters.gpu_memory import find_gpu

STEPS = 20
MIB = 1 << 20
kept: list[Any] = []


def new_streams(number: int) -> None:
    """A stream for each step: what it cached serves nobody else."""
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.zeros(8 * MIB, device="cuda")
    torch.cuda.synchronize()


def waiting_blocks(number: int) -> None:
    """Blocks on which a stream that is busy for long has a claim."""
    if not kept:
        kept.append(torch.cuda.Stream())
    if number == 1:
        with torch.cuda.stream(kept[0]):
            torch.cuda._sleep(8_000_000_000)
    tensor = torch.zeros(4 * MIB, device="cuda")
    tensor.record_stream(kept[0])


def new_graphs(number: int) -> None:
    """A graph captured anew in each step, with a pool of its own."""
    x = torch.zeros(MIB, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x * 2).exp()
        del y
    kept.append(graph)


def pinned_buffers(number: int) -> None:
    """A new pinned buffer in each step, whose copy waits behind a busy GPU: none can be used
    again meanwhile.
    """
    if number == 1:
        torch.cuda._sleep(8_000_000_000)
    torch.zeros(2 * MIB, dtype=torch.uint8).pin_memory().to("cuda", non_blocking=True)


def raw_allocations(number: int) -> None:
    """Memory of PyTorch's allocator without a tensor, as C++ code holds it."""
    kept.append(torch.cuda.caching_allocator_alloc(3 * MIB))


def outside(number: int) -> None:
    """cudaMalloc, past PyTorch."""
    runtime = ctypes.CDLL(
        next(word for word in Path("/proc/self/maps").read_text().split() if "libcudart" in word)
    )
    address = ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(6 * MIB)) == 0
    kept.append(address)


def cast_weights(number: int) -> None:
    """New leaves in each step, cast under no_grad in one autocast block: copies without a Python
    object.
    """
    weight = torch.nn.Parameter(torch.zeros(1024, 1024, device="cuda"))
    with torch.no_grad():
        torch.nn.functional.linear(torch.zeros(8, 1024, device="cuda"), weight)


def quiet(number: int) -> None:
    """A training step that keeps nothing."""
    if not kept:
        model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
        kept.extend((model, torch.optim.AdamW(model.parameters())))
    model, optimizer = kept
    model(torch.randn(64 + 16 * (number % 5), 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


EXPECTED: dict[Callable[[int], None], str] = {
    new_streams: "stream",
    waiting_blocks: "stream",
    new_graphs: "pool",
    pinned_buffers: "pinned",
    raw_allocations: "other",
    outside: "external",
    cast_weights: "cache",
    quiet: "",
}


def run(step: Callable[[int], None]) -> bool:
    """Whether the report says what is expected."""
    kept.clear()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.zeros(1, device="cuda")
    autocast = torch.autocast("cuda", dtype=torch.bfloat16, enabled=step is cast_weights)
    with autocast:
        watch = vramlens.LeakWatch()
        for number in range(1, STEPS + 1):
            step(number)
            watch.step()
        report = watch.report()
    said = {leak.kind for leak in report.leaks if leak.verdict != "not a problem"}
    wanted = {EXPECTED[step]} - {""}
    right = wanted <= said and (bool(wanted) or not report.found)
    print(
        f"\n== {step.__name__}: {'right' if right else 'WRONG'}, expected {EXPECTED[step] or 'nothing'}\n{report}"
    )
    return right


def cost() -> None:
    """What reading the counters costs in each step, and the driver."""
    torch.cuda.init()
    gpu = find_gpu(torch)
    assert gpu is not None
    for name, ask in (
        ("counts", lambda: gpu.counts(0)),
        ("pinned", gpu.pinned),
        ("contexts", gpu.contexts),
        ("outside", lambda: gpu.outside(0)),
        ("segments", gpu.segments),
    ):
        times = []
        for _ in range(200):
            began = time.perf_counter()
            ask()
            times.append(time.perf_counter() - began)
        print(f"{name}: {statistics.median(times) * 1e6:.1f} us (median of 200)")
    watch = vramlens.LeakWatch()
    times = []
    kept.clear()
    for number in range(300):
        quiet(number)
        torch.cuda.synchronize()
        began = time.perf_counter()
        watch.step()
        times.append(time.perf_counter() - began)
    print(
        f"LeakWatch.step(): {statistics.median(times) * 1e6:.0f} us median, {sum(times) / 300 * 1e6:.0f} us mean"
    )


def main(names: list[str]) -> int:
    cost()
    chosen = [step for step in EXPECTED if not names or step.__name__ in names]
    right = [run(step) for step in chosen]
    print(
        f"\n{sum(right)} of {len(right)} right; contexts of this process: {find_gpu(torch).contexts()}"
    )  # type: ignore[union-attr]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
