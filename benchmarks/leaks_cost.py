"""What ``vramlens run --leaks`` and ``LeakWatch`` cost a program, in its own processor time.

    python benchmarks/leaks_cost.py [--pairs 7] [--steps 200] [--rows 128]

Runs the same program without and with vramlens, in turns, and compares the processor time of its
first 50 steps and of the others, without imports and without the report at the end. A smaller
``--rows`` makes shorter steps. ``--watch`` calls ``LeakWatch.step()`` in the program instead.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

FIRST_STEPS = 50
PROGRAM = """
import json, os, sys, time
import torch

torch.set_num_threads(1)
steps, rows, is_watched = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "watch"
width = 512 if rows > 4 else 64

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(6))
        self.out = torch.nn.Linear(width, 10)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.out(x)

def train():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    if rows > 4:
        optimizer = torch.optim.AdamW(model.parameters())
    losses, times = [], []
    for _ in range(2):
        model(torch.randn(rows, width)).square().mean().backward()
    watch = None
    if is_watched:
        import vramlens
        vramlens.LeakWatch()
    for step in range(steps + 1):
        times.append(time.process_time())
        if is_watched and watch is None:
            watch = vramlens.LeakWatch()
        loss = torch.nn.functional.cross_entropy(
            model(torch.randn(rows, width)), torch.randint(0, 10, (rows,))
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if watch is not None:
            watch.step()
    return times

times = train()
print(json.dumps(times))
"""


def main() -> None:
    """Prints the shares of all pairs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--watch", action="store_true")
    arguments = parser.parse_args()
    plain: list[list[float]] = []
    watched: list[list[float]] = []
    with tempfile.TemporaryDirectory(prefix="leaks_cost") as folder:
        script = Path(folder, "train.py")
        script.write_text(PROGRAM)
        size = [str(arguments.steps), str(arguments.rows)]
        run = [sys.executable, "-m", "vramlens", "run", "--leaks"]
        with_it = [sys.executable] if arguments.watch else run
        name = "watch" if arguments.watch else "-"
        for _ in range(arguments.pairs):
            plain.append(times_of([sys.executable, str(script), *size, "-"], folder))
            watched.append(times_of([*with_it, str(script), *size, name], folder))
    for first, last in ((0, FIRST_STEPS), (FIRST_STEPS, arguments.steps), (0, arguments.steps)):
        tell(first, last, plain, watched)


def times_of(command: Sequence[str], folder: str) -> list[float]:
    """The processor time of a program before each of its steps."""
    done = subprocess.run(
        command, cwd=folder, env=os.environ.copy(), capture_output=True, text=True, check=True
    )
    times: list[float] = json.loads(done.stdout.splitlines()[0])
    return times


def tell(
    first: int, last: int, plain: Sequence[Sequence[float]], watched: Sequence[Sequence[float]]
) -> None:
    """Prints what some steps took without and with vramlens."""
    spans = [[times[last] - times[first] for times in runs] for runs in (plain, watched)]
    without, with_it = map(statistics.median, spans)
    shares = sorted(there / here - 1 for here, there in zip(*spans, strict=True))
    print(
        f"steps {first} to {last}: {without / (last - first) * 1e3:.2f} ms a step without,"
        f" {with_it / (last - first) * 1e3:.2f} ms with: {with_it / without - 1:+.1%} of medians,"
        f" {min(spans[1]) / min(spans[0]) - 1:+.1%} of the fastest,"
        f" pairs {shares[0]:+.1%} to {shares[-1]:+.1%}, median {statistics.median(shares):+.1%}"
    )


if __name__ == "__main__":
    main()
