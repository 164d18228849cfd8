"""find_batch_size beside the truth without a GPU: the benchmark's models on a simulation of
PyTorch's allocator.

    python benchmarks/find_batch_size_simulated.py [MODEL ...]

A step's requests come from running the model on the meta device (nothing is computed): each storage
that appears and dies, in order. A caching allocator with PyTorch's default rules serves them under
a limit. The truth is bisection with the memory of a fresh process for each size; the search is
``find_batch_size``'s own. What only a GPU has is missing: cuDNN's workspaces; cuBLAS's are one
block of 32 MiB. Prints a line for each model and limit.
"""

from __future__ import annotations

import bisect
import functools
import gc
import sys
import weakref
from typing import Any

import find_batch_size as measured
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from vramlens.recovery.batch_size.largest_batch import search
from vramlens.recovery.batch_size.peak_fit import Probe
from vramlens.recovery.batch_size.scaled_requests import requests_of_snapshot

MIB, GIB = 2**20, 2**30
WORKSPACE = 32 * MIB
LIMITS_GIB = (3, 4, 6, 10, 16, 24)
SAMPLE_MIB = {"gpt": 100, "gpt bf16": 270, "encoder": 100, "u-net": 50, "residual net": 13}
"""About what a sample takes: where the bisection begins."""


class Full(Exception):
    """No room, also after the cache was emptied."""


class Block:
    __slots__ = ("address", "after", "before", "free", "size", "small")


class Allocator:
    """CUDACachingAllocator.cpp by its defaults: best fit by size and address, blocks split and
    joined in segments.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.next, self.reserved, self.live, self.peak, self.retries = (
            limit,
            GIB,
            0,
            0,
            0,
            0,
        )
        self.recorded: list[dict[str, Any]] | None = None
        self.blocks: dict[int, Block] = {}
        self.pools: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])

    def take(self, requested: int) -> int:
        size = max(512, -(-requested // 512) * 512)
        small = size <= MIB
        pool = self.pools[small]
        place = bisect.bisect_left(pool, (size, 0))
        block = self.blocks[pool.pop(place)[1]] if place < len(pool) else self.segment(size, small)
        block.free, rest = False, block.size - size
        if rest >= 512 if small else rest > MIB:
            other = Block()
            other.address, other.size, other.small, other.free = (
                block.address + size,
                rest,
                small,
                True,
            )
            other.before, other.after = block, block.after
            if block.after is not None:
                block.after.before = other
            block.after, block.size = other, size
            self.blocks[other.address] = other
            bisect.insort(pool, (rest, other.address))
        self.live += block.size
        self.peak = max(self.peak, self.live)
        self.note("alloc", block.address, requested)
        return block.address

    def note(self, action: str, address: int, size: int) -> None:
        """As PyTorch's recording has it; segments do not matter here."""
        if self.recorded is not None:
            self.recorded.append(
                {"action": action, "addr": address, "size": size, "stream": 0, "frames": []}
            )

    def segment(self, size: int, small: bool) -> Block:
        whole = (
            2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        )
        if self.reserved + whole > self.limit:
            self.retries += 1
            self.empty()
            if self.reserved + whole > self.limit:
                raise Full
        block = Block()
        block.address, block.size, block.small, block.before, block.after = (
            self.next,
            whole,
            small,
            None,
            None,
        )
        self.next += whole + GIB
        self.blocks[block.address] = block
        self.reserved += whole
        return block

    def give(self, address: int) -> None:
        block = self.blocks[address]
        self.live -= block.size
        self.note("free_requested", address, block.size)
        self.note("free_completed", address, block.size)
        block.free, pool = True, self.pools[block.small]
        for one, other in ((block, block.after), (block.before, block)):
            if one is None or other is None or not (one.free and other.free):
                continue
            for each in (one, other):
                if each is not block:
                    pool.pop(bisect.bisect_left(pool, (each.size, each.address)))
            one.size, one.after = one.size + other.size, other.after
            if other.after is not None:
                other.after.before = one
            del self.blocks[other.address]
            block = one
        bisect.insort(pool, (block.size, block.address))

    def whole(self, address: int) -> bool:
        return self.blocks[address].before is None and self.blocks[address].after is None

    def empty(self) -> None:
        for pool in self.pools:
            for size, address in [one for one in pool if self.whole(one[1])]:
                pool.remove((size, address))
                del self.blocks[address]
                self.reserved -= size

    def lost(self) -> int:
        return sum(size for pool in self.pools for size, address in pool if not self.whole(address))


class Requests(TorchDispatchMode):
    """Storages of the meta device as they come and go: (number, bytes), (number, -1), or (a
    phase that begins, 0).
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[Any, int]] = []
        self.known: dict[int, int] = {}
        self.count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in tree_iter(result):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "meta":
                storage = leaf.untyped_storage()
                if storage._cdata not in self.known and storage.nbytes():
                    self.known[storage._cdata] = self.count
                    self.events.append((self.count, storage.nbytes()))
                    weakref.finalize(storage, self.gone, storage._cdata, self.count)
                    self.count += 1
        return result

    def gone(self, key: int, number: int) -> None:
        self.known.pop(key, None)
        self.events.append((number, -1))

    def phase(self, name: str) -> None:
        self.events.append((name, 0))


def like_a_gpu(half: bool) -> None:
    """Attention without its matrix, as CUDA's kernels; autocast's casts, which the meta device
    does not know.
    """

    def attention(q: Any, k: Any, v: Any, is_causal: bool = False, **_: Any) -> Any:
        if q.dtype == torch.bfloat16:
            return torch.ops.aten._scaled_dot_product_flash_attention(
                q, k, v, 0.0, is_causal, False
            )[0]
        return torch.ops.aten._scaled_dot_product_efficient_attention(
            q, k, v, None, True, 0.0, is_causal
        )[0]

    def linear(x: Any, weight: Any, bias: Any = None) -> Any:
        return PLAIN["linear"](
            *(one if one is None or not half else one.bfloat16() for one in (x, weight, bias))
        )

    functional.scaled_dot_product_attention, functional.linear = attention, linear
    functional.layer_norm = lambda x, *a, **k: PLAIN["layer_norm"](x.float(), *a, **k)
    functional.cross_entropy = lambda x, *a, **k: PLAIN["cross_entropy"](x.float(), *a, **k)


PLAIN = {name: getattr(functional, name) for name in ("linear", "layer_norm", "cross_entropy")}


def batch_of(name: str, size: int) -> Any:
    length, classes = {"gpt": (256, 0), "gpt bf16": (512, 0), "encoder": (256, 10)}.get(
        name, (0, 0)
    )
    if length:
        tokens = torch.zeros((size, length), dtype=torch.int64)
        return tokens, torch.zeros((size,), dtype=torch.int64) if classes else tokens
    side = 224 if name == "residual net" else 128
    return torch.zeros((size, 3, side, side)), torch.zeros((size,), dtype=torch.int64)


@functools.lru_cache(maxsize=64)
def requests_of(name: str, size: int) -> list[tuple[Any, int]]:
    """A program that makes the model and trains two steps."""
    build, _, _, optimizer_fn = measured.MODELS[name]
    loss_fn = measured.squares if name == "u-net" else measured.labels
    gc.collect()
    like_a_gpu("bf16" in name)
    with torch.device("meta"), Requests() as found:
        model = build()
        optimizer = optimizer_fn(model.parameters())
        for _ in range(2):
            found.phase("batch")
            batch = batch_of(name, size)
            found.phase("forward")
            loss = loss_fn(model, batch)
            found.phase("backward")
            loss.backward()
            del loss
            found.phase("step")
            optimizer.step()
            optimizer.zero_grad()
            found.phase("end")
            del batch
        return list(found.events)


def ran(name: str, size: int, limit: int, *, is_recorded: bool = False) -> Probe | None:
    """What the second step had; None: it failed."""
    memory, places, phase = Allocator(limit), {}, ""
    memory.recorded = [] if is_recorded else None
    memory.take(WORKSPACE)
    peaks: dict[str, int] = {}
    batch = lost = before = 0
    try:
        for what, size_bytes in requests_of(name, size):
            if size_bytes > 0:
                places[what] = memory.take(size_bytes)
            elif size_bytes < 0:
                memory.give(places.pop(what))
            else:
                peaks[phase], memory.peak, phase = memory.peak, memory.live, what
                if what == "batch":
                    before = memory.live
                elif what == "forward":
                    batch = memory.live - before
                elif what == "backward":
                    lost = memory.lost()
    except Full:
        return None
    snapshot = {"segments": [], "device_traces": [memory.recorded]}
    requests = requests_of_snapshot(snapshot, size, 0, "2.11.0") if is_recorded else None
    return Probe(
        size, peaks["forward"], peaks["backward"], peaks["step"], batch, memory.reserved, lost, memory.retries,
        requests=requests,
    )  # fmt: skip


class Simulated:
    """In place of the prober."""

    def __init__(self, name: str, limit: int, is_recorded: bool) -> None:
        self.name, self.limit, self.failures, self.is_recorded = name, limit, 0, is_recorded
        with torch.device("meta"):
            self.gradient_bytes = sum(
                p.numel() * 4 for p in measured.MODELS[name][0]().parameters()
            )
        copies = 2 if measured.MODELS[name][3] is measured.momentum else 3
        self.persistent_bytes = copies * self.gradient_bytes + WORKSPACE

    def probe(self, size: int, make_batch: Any) -> Probe | None:
        found = ran(self.name, size, self.limit, is_recorded=self.is_recorded)
        self.failures += found is None
        return found


def truth(name: str, limit: int) -> int:
    low, high = 0, max(2, limit // (SAMPLE_MIB[name] * MIB))
    while ran(name, high, limit) is not None:
        low, high = high, int(high * 1.15) + 1
    while high - low > max(1, low // 200):
        middle = (low + high) // 2
        low, high = (middle, high) if ran(name, middle, limit) is not None else (low, middle)
    return low


def main() -> None:
    for name in sys.argv[1:] or SAMPLE_MIB:
        for limit_gib in LIMITS_GIB:
            real = truth(name, limit_gib * GIB)
            for is_recorded in (True, False):
                prober = Simulated(name, limit_gib * GIB, is_recorded)
                found = search(prober, None, limit_gib * GIB, "the limit", None, 2)
                sizes = ", ".join(
                    f"{probe.size}{'r' * bool(probe.retries)}" for probe in found.probes
                )
                print(
                    f"{name:13} {limit_gib:3} GiB  truth {real:5}  {'requests' if is_recorded else 'peaks':8}"
                    f" {found.size:5} ({found.size / real - 1:+.1%}), {found.low} to {found.high}; probes {sizes};"
                    f" {found.failures} failed",
                    flush=True,
                )
            requests_of.cache_clear()


if __name__ == "__main__":
    main()
