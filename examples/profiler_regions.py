"""Profiles a few training steps, with the parts of a step named, and says what the trace shows.

    python examples/profiler_regions.py [trace.json.gz]

What is often missing in recipes: a warm-up (the first steps pay for start-up), ``prof.step()``, the
program's own names (``record_function``), and a file that is compressed. ``export_memory_timeline``
is not needed: the trace holds it.
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

import vramlens
from vramlens.units import format_size

WAIT, WARMUP, ACTIVE = 1, 1, 2


def main(path: str) -> None:
    """Trains, writes the trace and explains it."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(
        activities=activities,
        schedule=schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1),
        on_trace_ready=lambda prof: prof.export_chrome_trace(path),
        profile_memory=True,
        with_stack=True,
    ) as prof:
        for _ in range(WAIT + WARMUP + ACTIVE):
            with record_function("data"):
                batch = torch.randn(64, 256, device=device)
            with record_function("forward"):
                loss = model(batch).square().mean()
            with record_function("backward"):
                loss.backward()
            with record_function("optimizer"):
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            prof.step()
    found = vramlens.explain(path)
    print(f"{path}: {len(found.steps)} steps, {found.memory_events:,} memory events")
    for memory in found.memories[:1]:
        print(f"peak on {memory.device}: {format_size(memory.allocated_bytes)}")
        for holder in memory.at_peak[:3]:
            print(f"  {format_size(holder.bytes):>12}  {holder.operator}")
    print(f"Next: vramlens explain {path}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "trace.json.gz")
