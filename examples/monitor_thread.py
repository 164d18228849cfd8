"""A monitor thread beside a training loop: what memory does while it runs, and a warning before it
runs out.

    python examples/monitor_thread.py [STEPS]

The loop keeps every loss with its graph, which is what most slow leaks are; on a GPU the monitor
says how fast memory grows and for how many steps it lasts. Without a GPU it runs all the same and
watches the host.
"""

from __future__ import annotations

import sys

import vramlens
from vramlens.monitor import Alert, Monitor

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 60


def warn(alert: Alert) -> None:
    """What a program does about it: here it only says so; it may as well save a checkpoint."""
    print(f"warning: {alert.text}")


def train(monitor: Monitor) -> None:
    """A loop with a leak."""
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(STEPS):
        batch = torch.randn(512, 256, device=device)
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(
            model(batch).mean()
        )  # the leak: it keeps its graph; .item() behind it is the fix
        monitor.step()
        vramlens.step()


if __name__ == "__main__":
    with Monitor(
        interval=0.2, alerts=["used > 92%", "growth > 1MiB/step"], on_alert=warn, quiet=True
    ) as watch:
        train(watch)
    print(watch.summary())
