"""Ragged samples in batches that fill a memory budget; runs anywhere, on a simulated device without
a GPU.

    python examples/adaptive_batches.py

On a GPU leave ``meter`` away: its own counters are used, and ``max_memory`` may be as large as the
    GPU.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

import vramlens
from vramlens.recovery.meters import CountingMeter

BUDGET = 24 * 2**20


def loss_fn(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """The mean loss of predicting each token from itself."""
    return functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


def make_batch(size: int, length: int) -> torch.Tensor:
    """So many samples of one length."""
    return torch.randint(1, 500, (size, length))


lengths = [8 + (index * 37) % 120 for index in range(400)]
samples = [torch.randint(1, 500, (length,)) for length in lengths]

with CountingMeter(BUDGET) as meter:
    model = nn.Sequential(nn.Embedding(500, 64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 500))
    optimizer = torch.optim.AdamW(model.parameters())
    loader = vramlens.AdaptiveBatchLoader(
        samples, BUDGET, model=model, make_batch=make_batch, loss_fn=loss_fn, optimizer=optimizer, length_fn=len,
        collate_fn=lambda rows: nn.utils.rnn.pad_sequence(rows, batch_first=True), meter=meter,
    )  # fmt: skip
    print(loader.found)
    sizes = []
    for batch in loader:
        loss_fn(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        sizes.append(tuple(batch.shape))

print(
    f"{len(sizes)} batches of {min(n for n, _ in sizes)} to {max(n for n, _ in sizes)} samples, none failed:"
)
print(f"the most was {meter.peak_bytes() / 2**20:.1f} of {BUDGET / 2**20:.0f} MiB")
