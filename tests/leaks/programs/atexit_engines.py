"""Each reload registers the engine's exit, which keeps the old engine (ace-step, pull request 1311)"""

import atexit
import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["cache", "closure", "other"],
            "why": "a registry of the interpreter's that Python cannot list, with a bound method in it",
            "owner": ["atexit", "exit", "Engine", "register"],
            "bytes_per_step": 4 * (300 * 400 + 400),
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Engine:
    def __init__(self, name):
        self.name = name
        self.model = nn.Linear(300, 400, device=DEVICE)  # ALLOCATES
        self.closed = False
        atexit.register(self.exit)  # KEEPS
        # FIX: atexit.register(print, end="")

    def exit(self):
        self.closed = True

    def run(self, x):
        with torch.no_grad():
            return self.model(x)


class Studio:
    def __init__(self):
        self.engine = None
        self.loaded = []

    def load(self, name):
        self.engine = Engine(name)
        self.loaded.append(name)


def main(watch):
    studio = Studio()
    x = torch.randn(8, 300, device=DEVICE)
    for number in range(14):
        studio.load(f"adapter {number}")
        studio.engine.run(x)
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main(vramlens.LeakWatch())
