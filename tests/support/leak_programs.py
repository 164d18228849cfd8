"""Training runs made up for one test: six kinds of leaks, and what only looks like one, as PyTorch
records them.

A run is a loop whose steps ask for a batch, for the activations of a forward pass, for gradients on
autograd's thread (which leaves no frames) and for an optimizer's temporaries. Each kind adds its
own; ``truth`` says what it is.
"""

from __future__ import annotations

import pickle
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from support.oracle import MIB, PENDING
from support.recordings import event, read, segment, snapshot
from vramlens.trace import Trace

LOOP = ("/home/user/train.py", 20, "train")
MAIN = ("/home/user/train.py", 90, "<module>")
CALL = ("/usr/lib/python3.11/site-packages/torch/nn/modules/module.py", 1773, "_call_impl")
ADAM = ("/usr/lib/python3.11/site-packages/torch/optim/adamw.py", 226, "step")
LEAK_LINE = 66
BASE = 1 << 40


def at(line: int, function: str = "train") -> tuple[str, int, str]:
    return ("/home/user/train.py", line, function)


class Run:
    """Writes the events of one run."""

    def __init__(self, seed: int, *, varlen: bool = False, marks: bool = True) -> None:
        self.random = random.Random(seed)
        self.events: list[dict[str, Any]] = []
        self.notes: list[dict[str, Any]] = []
        self.time, self.next, self.varlen, self.marks = 1, BASE, varlen, marks
        self.alive: dict[int, int] = {}
        self.waiting: dict[int, int] = {}
        self.total: list[int] = []
        self.reserved: list[tuple[int, int, int]] = []
        self.built: list[int] = []
        self.pools: list[tuple[int, int, tuple[int, int]]] = []
        self.scale, self.ends = 1, False
        self.layers = [
            (MAIN, LOOP, CALL, ("/home/user/model.py", 30 + n, "forward")) for n in range(6)
        ]
        self.tell("segment_alloc", BASE, 1 << 36)

    def tell(
        self, action: str, address: int, size: int, stack: tuple[Any, ...] = (), **more: Any
    ) -> None:
        self.time += 1
        frames = [{"filename": f, "line": n, "name": name} for f, n, name in reversed(stack)]
        self.events.append(event(action, address, size, time_us=self.time, frames=frames, **more))

    def new(self, size: int, *stack: tuple[str, int, str], **more: Any) -> int:
        address, self.next = self.next, self.next + -(-size // 512) * 512
        self.tell("alloc", address, size, stack, **more)
        self.alive[address] = size
        return address

    def reserve(self, address: int, size: int, stream: int) -> None:
        self.tell("segment_alloc", address, size, stream=stream)
        self.reserved.append((address, size, stream))

    def free(self, address: int) -> None:
        size = self.alive.pop(address)
        self.tell("free_requested", address, size)
        self.tell("free_completed", address, size)

    def give_up(self, address: int) -> None:
        """Frees what another stream still uses, and goes on using."""
        size = self.alive.pop(address)
        self.tell("free_requested", address, size)
        self.waiting[address] = size

    def step(self, extra: Callable[[int], None], number: int, *, micro: int = 1) -> None:
        """One step; ``extra`` runs after the forward pass."""
        self.scale = self.random.randrange(50, 150) if self.varlen else 100
        for _ in range(micro):
            batch = self.new(80 * self.scale * 8, MAIN, at(21))
            kept = [
                self.new(4096 * self.scale * (1 + n % 3), *stack)
                for n, stack in enumerate(self.layers)
            ]
            extra(number)
            grads = []
            for address in reversed(kept):
                grads.append(self.new(64 * 1024))
                self.free(address)
            for address in (*grads, batch):
                self.free(address)
        temporary = self.new(256 * 1024, MAIN, at(24), ADAM)
        self.free(temporary)
        self.total.append(sum(self.alive.values()))
        if self.marks:
            self.time += 1
            self.notes.append(
                {"stage": "END", "name": "vramlens.step", "device": 0, "time_us": self.time}
            )

    def setup(self) -> None:
        for n in range(8):
            self.built.append(
                self.new(2 * MIB, MAIN, at(10, "build"), ("/home/user/model.py", 5 + n, "__init__"))
            )

    def finish(self, kept: Iterable[int] = ()) -> None:
        """The end of the program's function: its model goes, and what it kept, in this order."""
        for address in (*self.built, *kept):
            self.free(address)
        self.built = []

    def end(self, kept: Iterable[int] = ()) -> None:
        """The same, where the recording goes on until then."""
        if self.ends:
            self.finish(kept)

    def trace(self) -> Trace:
        """The run as a Trace, through a pickle."""
        end = self.new(512, MAIN, at(99, "main"))
        self.free(end)
        blocks = [
            {
                "address": a,
                "size": -(-s // 512) * 512,
                "requested_size": s,
                "state": "active_allocated",
                "frames": [],
            }
            for a, s in self.alive.items()
        ]
        blocks += [
            {
                "address": a,
                "size": -(-s // 512) * 512,
                "requested_size": s,
                "state": PENDING[0],
                "frames": [],
            }
            for a, s in self.waiting.items()
        ]
        blocks.sort(key=lambda block: block["address"])
        segments = [segment(BASE, 1 << 36, _filled(blocks))]
        for address, size, stream in self.reserved:
            free = {
                "address": address,
                "size": size,
                "requested_size": 0,
                "state": "inactive",
                "frames": [],
            }
            segments.append(segment(address, size, [free], stream=stream))
        for address, size, pool in self.pools:
            free = {
                "address": address,
                "size": size,
                "requested_size": 0,
                "state": "inactive",
                "frames": [],
            }
            segments.append(segment(address, size, [free], segment_pool_id=pool))
        return read(
            pickle.dumps(snapshot(self.events, segments) | {"external_annotations": self.notes})
        )


def _filled(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Blocks with the free ones between them."""
    found, here = [], BASE
    for block in blocks:
        if block["address"] > here:
            found.append({"address": here, "size": block["address"] - here, "requested_size": 0, "state": "inactive",
                          "frames": []})  # fmt: skip
        found.append(block)
        here = block["address"] + block["size"]
    if here < BASE + (1 << 36):
        found.append({"address": here, "size": BASE + (1 << 36) - here, "requested_size": 0, "state": "inactive",
                      "frames": []})  # fmt: skip
    return found


@dataclass(frozen=True)
class Truth:
    """What a run is: whether it leaks, the line and the bytes per step; and from how many steps on
    that can be seen.

    ``alone`` is from how many steps on where the recording does not show the program's end.
    """

    leaks: bool
    line: int | None = None
    bytes_per_step: float | None = None
    shows_after: int = 0
    alone: int | None = None

    def shows(self, steps: int, *, ends: bool) -> bool:
        """Whether so many steps are enough."""
        return steps >= (self.shows_after if ends or self.alone is None else self.alone)


Program = Callable[[Run, int], Truth]


# Leaks


def kept_output(run: Run, steps: int) -> Truth:
    size = run.random.randrange(100, 5000) * 1024
    run.setup()
    kept = []
    for step in range(steps):
        run.step(lambda _: None, step)
        kept.append(run.new(size, MAIN, at(LEAK_LINE)))
    run.end(reversed(kept))
    return Truth(True, LEAK_LINE, size, 10, 130)


def kept_graph(run: Run, steps: int) -> Truth:
    """A second pass whose activations all stay: its result is in a list."""
    run.setup()
    kept = 0

    def extra(_: int) -> None:
        nonlocal kept
        for n in range(6):
            size = 2048 * run.scale * (1 + n)
            run.new(size, MAIN, at(LEAK_LINE), CALL, ("/home/user/model.py", 30 + n, "forward"))
            kept += size

    for step in range(steps):
        run.step(extra, step)
    return Truth(True, LEAK_LINE, kept / steps, 8)


def hooked(run: Run, steps: int) -> Truth:
    """A forward hook keeps one layer's output; other layers of the same line give theirs back."""
    run.setup()
    size = run.random.randrange(64, 2048) * 1024
    stack = (MAIN, LOOP, CALL, ("/home/user/model.py", LEAK_LINE, "forward"))

    def extra(_: int) -> None:
        others = [run.new(size, *stack) for _ in range(2)]
        run.new(size, *stack)
        for address in (*others, run.new(size, *stack)):
            run.free(address)

    for step in range(steps):
        run.step(extra, step)
    return Truth(True, LEAK_LINE, size, 10)


def cycle(run: Run, steps: int) -> Truth:
    run.setup()
    size = 12_000_000
    for step in range(steps):
        run.step(lambda _: run.new(size, MAIN, at(LEAK_LINE)) and None, step)
    run.end()
    return Truth(True, LEAK_LINE, size, 10)


def caught(run: Run, steps: int) -> Truth:
    """Now and then a pass raises, and the exception is kept with its frames."""
    run.setup()
    every = run.random.choice([2, 3])
    kept = 0

    def extra(step: int) -> None:
        nonlocal kept
        if step % every == every - 1:
            for n in range(5):
                run.new(MIB, MAIN, at(LEAK_LINE), CALL, ("/home/user/model.py", 30 + n, "forward"))
                kept += MIB

    for step in range(steps):
        run.step(extra, step)
    return Truth(True, LEAK_LINE, 5 * MIB / every, 12 * every)


def every_tenth(run: Run, steps: int) -> Truth:
    """What is logged every tenth step stays."""
    run.setup()
    size = 3 * MIB
    for step in range(steps):
        run.step(
            lambda s: run.new(size, MAIN, at(LEAK_LINE)) and None if s % 10 == 9 else None, step
        )
    run.end()
    return Truth(True, LEAK_LINE, size / 10, 130, 1300)


def late(run: Run, steps: int) -> Truth:
    """Begins after a third of the run, beside a cache that filled before."""
    run.setup()
    for step in range(steps):
        if step < min(8, steps // 4):
            run.new(MIB, MAIN, at(50))
        run.step(
            lambda s: run.new(MIB, MAIN, at(LEAK_LINE)) and None if s >= steps // 3 else None, step
        )
    run.end()
    return Truth(True, LEAK_LINE, MIB, 20, 200)


def new_streams(run: Run, steps: int) -> Truth:
    """Each step makes a stream of its own; what was reserved for it is never used again."""
    run.setup()

    def extra(step: int) -> None:
        stream, address = 0x7000 + step, (1 << 42) + step * 32 * MIB
        run.reserve(address, 20 * MIB, stream)
        run.tell("alloc", address, 20 * MIB, (MAIN, at(LEAK_LINE)), stream=stream)
        run.tell("free_requested", address, 20 * MIB, stream=stream)
        run.tell("free_completed", address, 20 * MIB, stream=stream)

    for step in range(steps):
        run.step(extra, step)
    return Truth(True, LEAK_LINE, 20 * MIB, 8)


# Look-alikes


def growing_cache(run: Run, steps: int) -> Truth:
    """What is reserved grows now and then; nothing is kept."""
    run.setup()

    def extra(step: int) -> None:
        if run.random.random() < 0.4:
            run.reserve((1 << 42) + step * 32 * MIB, 20 * MIB, 0)

    for step in range(steps):
        run.step(extra, step)
    return Truth(False)


def few_streams(run: Run, steps: int) -> Truth:
    """Some streams, each of which reserves when it is first used and is used again and again."""
    run.setup()

    def extra(step: int) -> None:
        number = step % 8
        stream, address = 0x7000 + number, (1 << 42) + number * 32 * MIB
        if step < 8:
            run.reserve(address, 20 * MIB, stream)
        run.tell("alloc", address, 20 * MIB, (MAIN, at(65)), stream=stream)
        run.tell("free_requested", address, 20 * MIB, stream=stream)
        run.tell("free_completed", address, 20 * MIB, stream=stream)

    for step in range(steps):
        run.step(extra, step)
    return Truth(False, shows_after=18)


def warm_up(run: Run, steps: int) -> Truth:
    run.setup()
    for step in range(steps):
        run.step(lambda _: None, step)
        if step == 0:
            for n in range(16):
                run.new(2 * MIB, MAIN, at(24), ("/home/user/model.py", 1, "x") if n < 0 else ADAM)
    return Truth(False)


def work_buffers(run: Run, steps: int) -> Truth:
    run.setup()
    for step in range(steps):
        run.step(
            lambda s: (
                run.new(8_519_680, MAIN, LOOP, CALL, at(31)) and None if s in (0, 2) else None
            ),
            step,
        )
    return Truth(False)


def filling_cache(run: Run, steps: int) -> Truth:
    """One entry a key; keys come at random."""
    run.setup()
    keys, full = set[int](), 0
    many = run.random.choice([4, 8, 12])

    def extra(step: int) -> None:
        nonlocal full
        key = run.random.randrange(many)
        if key not in keys:
            keys.add(key)
            full = step
            run.new(MIB, MAIN, at(51))

    for step in range(steps):
        run.step(extra, step)
    run.end()
    return Truth(False, shows_after=3 * many)


def cache_of_shapes(run: Run, steps: int) -> Truth:
    """One entry a sequence length."""
    run.varlen = True
    run.setup()
    seen = set[int]()

    def extra(_: int) -> None:
        if run.scale not in seen:
            seen.add(run.scale)
            run.new(run.scale * 4096, MAIN, at(52))

    for step in range(steps):
        run.step(extra, step)
    return Truth(False)


def saw_tooth(period: int) -> Program:
    """A list that is emptied at the end of each epoch."""

    def program(run: Run, steps: int) -> Truth:
        run.setup()
        kept: list[int] = []
        start = run.random.randrange(period)
        for step in range(start, steps + start):
            run.step(lambda _: kept.append(run.new(MIB, MAIN, at(53))), step)
            if step % period == period - 1:
                for address in kept:
                    run.free(address)
                kept.clear()
        run.end(reversed(kept))
        return Truth(False, shows_after=period + 2)

    return program


def ring(length: int) -> Program:
    """A deque that keeps the latest."""

    def program(run: Run, steps: int) -> Truth:
        run.setup()
        kept = deque[int]()
        for step in range(steps):
            run.step(lambda _: kept.append(run.new(MIB, MAIN, at(54))), step)
            if len(kept) > length:
                run.free(kept.popleft())
        run.end(kept)
        return Truth(False, shows_after=length + 2)

    return program


def longer_sequences(run: Run, steps: int) -> Truth:
    """Lengths differ; the longest so far comes again and again, and a buffer is made anew for
    it.
    """
    run.varlen = True
    run.setup()
    longest, buffer = 0, 0

    def extra(_: int) -> None:
        nonlocal longest, buffer
        if run.scale > longest:
            if buffer:
                run.free(buffer)
            longest, buffer = run.scale, run.new(run.scale * 65536, MAIN, at(55))

    for step in range(steps):
        run.step(extra, step)
    return Truth(False)


def average(run: Run, steps: int) -> Truth:
    """A running average: each step's replaces the one before."""
    run.setup()
    held = [run.new(2 * MIB, MAIN, at(56)) for _ in range(4)]
    for step in range(steps):
        run.step(lambda _: None, step)
        for n in range(4):
            fresh = run.new(2 * MIB, MAIN, at(57))
            run.free(held[n])
            held[n] = fresh
    return Truth(False)


def best_copy(run: Run, steps: int) -> Truth:
    """A copy of the best weights, replaced at random."""
    run.setup()
    held: list[int] = []
    for step in range(steps):
        run.step(lambda _: None, step)
        if run.random.random() < 0.3:
            fresh = [run.new(2 * MIB, MAIN, at(58)) for _ in range(4)]
            for address in held:
                run.free(address)
            held = fresh
    return Truth(False)


def accumulation(run: Run, steps: int) -> Truth:
    """Gradients live through a window of micro-batches, each of which the program calls a step."""
    run.setup()
    window = run.random.choice([4, 8])
    grads: list[int] = []
    for step in range(steps):
        run.step(lambda _: None, step)
        if step % window == 0:
            for address in grads:
                run.free(address)
            grads = [run.new(MIB) for _ in range(4)]
    return Truth(False)


def prefetched(run: Run, steps: int) -> Truth:
    """Batches that wait in a queue."""
    run.setup()
    waiting = deque[int](run.new(MIB, MAIN, at(59)) for _ in range(4))
    for step in range(steps):
        run.step(lambda _: None, step)
        run.free(waiting.popleft())
        waiting.append(run.new(MIB, MAIN, at(59)))
    return Truth(False)


def collected_now_and_then(run: Run, steps: int) -> Truth:
    """Cycles that Python's collector frees in bursts."""
    run.setup()
    kept: list[int] = []
    burst = run.random.randrange(3, 6)
    for step in range(steps):
        run.step(lambda _: kept.append(run.new(MIB, MAIN, at(60))), step)
        burst -= 1
        if not burst:
            burst = run.random.randrange(3, 6)
            for address in kept:
                run.free(address)
            kept.clear()
    return Truth(False, shows_after=8)


def full_ring(run: Run, steps: int) -> Truth:
    """A ring that was full before the recording: each step gives back one that is older."""
    run.setup()
    old = deque[int]()
    run.events.clear()
    run.notes.clear()
    run.alive.clear()
    for _ in range(min(300, 2 * steps)):
        address, run.next = run.next, run.next + MIB
        run.alive[address] = MIB
        old.append(address)
    for step in range(steps):
        run.step(lambda _: run.new(MIB, MAIN, at(61)) and None, step)
        run.free(old.popleft())
    return Truth(False)


LEAKS: dict[str, Program] = {
    "kept output": kept_output,
    "kept graph": kept_graph,
    "hook": hooked,
    "cycle": cycle,
    "caught exception": caught,
    "every tenth step": every_tenth,
    "late": late,
    "new streams": new_streams,
}
LOOK_ALIKES: dict[str, Program] = {
    "warm-up": warm_up,
    "work buffers": work_buffers,
    "filling cache": filling_cache,
    "cache of shapes": cache_of_shapes,
    "epoch of 7": saw_tooth(7),
    "epoch of 25": saw_tooth(25),
    "epoch of 100": saw_tooth(100),
    "ring of 16": ring(16),
    "ring of 64": ring(64),
    "longer sequences": longer_sequences,
    "running average": average,
    "best copy": best_copy,
    "accumulation": accumulation,
    "prefetched": prefetched,
    "collected in bursts": collected_now_and_then,
    "full ring": full_ring,
    "growing cache": growing_cache,
    "few streams": few_streams,
}


def made(program: Program, steps: int, seed: int, *, ends: bool = False) -> tuple[Run, Truth]:
    """A run of some steps; seeds differ in sizes, lengths and in what tells steps apart.

    Args:
        ends: whether the recording goes on until the program's function has given everything back.
    """
    run = Run(seed, varlen=seed % 3 == 1, marks=seed % 2 == 0)
    run.ends = ends
    return run, program(run, steps)
