"""A device with PyTorch's allocator, for searches of the largest batch without a GPU."""

from __future__ import annotations

from typing import Any

import torch

from support.replay_oracle import SlowAllocator
from vramlens.recovery.batch_size.peak_fit import Probe
from vramlens.recovery.batch_size.scaled_requests import requests_of_snapshot


class Allocated:
    """A device with PyTorch's allocator (the slow one of the replay's tests), and what a step at a
    size asks of it.

    A third of the persistent bytes are parameters, two are optimizer state, made in the first step;
    so many layers keep an activation each, whose bytes are odd; a head as large as several of them
    comes last, and its gradient first.
    """

    def __init__(
        self,
        limit: int,
        parameters: int,
        layers: int,
        each: int,
        head: int,
        *,
        is_recorded: bool = False,
    ) -> None:
        self.is_recorded = is_recorded
        self.limit, self.parameters, self.layers, self.each, self.head = (
            limit,
            parameters,
            layers,
            each,
            head,
        )
        self.persistent_bytes, self.gradient_bytes, self.failures = 3 * parameters, parameters, 0

    def close(self) -> None:
        """Nothing was changed."""

    def probe(self, size: int, make_batch: Any, steps: int = 2) -> Probe | None:
        del make_batch
        memory, figures = SlowAllocator(cap=self.limit), (0, 0, 0)
        parts = [self.parameters // 10] * 10

        def take(size_bytes: int) -> int:
            address = memory.malloc(size_bytes)
            if address is None:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return address

        def phase() -> int:
            found = memory.peak_allocated
            memory.peak_allocated = sum(
                p.size for one in memory.segments for p in one.pieces if p.taken
            )
            return found

        try:
            for part in parts:
                take(part)
            phase()
            for number in range(steps):
                kept = [take(self.each * size) for _ in range(self.layers)]
                logits = take(self.head * size)
                kept.append(take(self.head * size))
                memory.free(logits)
                forward, waste = phase(), sum(
                    piece.size for one in memory.segments if not one.is_free
                    for piece in one.pieces if not piece.taken
                )  # fmt: skip
                gradient, gradients = take(self.head * size), []
                for index, activation in enumerate(reversed(kept)):
                    after = take(self.each * size)
                    memory.free(gradient)
                    memory.free(activation)
                    gradient = after
                    if index < len(parts):
                        gradients.append(take(parts[index]))
                memory.free(gradient)
                backward = phase()
                if number == 0:
                    for part in parts * 2:
                        take(part)
                for gone in gradients:
                    memory.free(gone)
                figures = (forward, backward, phase())
        except torch.OutOfMemoryError:
            self.failures += 1
            return None
        requests = (
            requests_of_snapshot(memory.recording(""), size, 0, "2.11.0")
            if self.is_recorded
            else None
        )
        return Probe(
            size, *figures, 0, memory.peak_reserved, waste, memory.retries, requests=requests
        )
