"""A training loop that survives out of memory with the same gradients; runs anywhere, without a
GPU.

    python examples/surviving_out_of_memory.py

The failures are drills (``inject_oom``): on a GPU they come by themselves. The loop also keeps what
was learned in its checkpoint, and hears of each change.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

import vramlens

model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def loss_fn(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The mean loss of a batch."""
    return functional.cross_entropy(model(batch["x"]), batch["label"])


guard = vramlens.guard(
    model,
    optimizer,
    order=(
        "free_cached",
        "split",
        "checkpoint",
        "offload",
    ),  # the default: what changes nothing, cheapest first
    on_change=lambda before, after, why: print(f"parts of {after} samples now: {why}"),
)
batches = [{"x": torch.randn(64, 32), "label": torch.randint(0, 10, (64,))} for _ in range(20)]

with vramlens.inject_oom("backward", at=5), vramlens.inject_oom("forward", at=12):
    for batch in batches:
        loss = guard.step(batch, loss_fn)

print(f"last loss {float(loss):.3f}")
print(guard.report())
checkpoint = {"model": model.state_dict(), "guard": guard.state_dict()}
print("in the checkpoint:", checkpoint["guard"])
