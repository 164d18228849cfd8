"""Records five training steps with PyTorch's own memory history, and explains the snapshot.

    python examples/snapshot_of_five_steps.py [snapshot.pickle]

What is often missing in recipes: a warm-up before recording (else the snapshot shows the
optimizer's first step and cuDNN's trials), the end of the recording in ``finally`` (else every
later allocation pays for it, and a failure leaves no file), and a bound on the events. ``vramlens
run --steps 3:8 train.py`` does the same without any of these lines.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import vramlens
from vramlens.api import example_path
from vramlens.units import format_size

WARMUP, STEPS, MOST_EVENTS = 3, 5, 1_000_000


def record(path: str) -> None:
    """Trains on the GPU and writes the snapshot of five steps."""
    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        loss = model(torch.randn(256, 1024, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(WARMUP):
        step()
    # Stacks of requests only: those of frees tell nothing more, and cost as much.
    torch.cuda.memory._record_memory_history(
        "all", context="alloc", stacks="python", max_entries=MOST_EVENTS
    )
    try:
        for _ in range(STEPS):
            step()
    finally:
        torch.cuda.memory._dump_snapshot(path)
        torch.cuda.memory._record_memory_history(None)


def main(path: str) -> None:
    """Records where there is a GPU, and explains what there is."""
    if torch.cuda.is_available():
        record(path)
    else:
        path = str(example_path())
        print("no GPU here: this is the recording that comes with vramlens")
    recording = vramlens.load(path)
    peak = recording.peak()
    print(f"peak: {format_size(peak.requested_bytes)} in step {peak.step}")
    for line in peak.by_line[:5]:
        print(f"  {format_size(line.bytes):>12}  {line.place}")
    print(f"Next: vramlens explain {path}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "snapshot.pickle")
