"""A problem solver's history keeps every output by name: https://github.com/pnnl/neuromancer/pull/292"""

import os
from collections import defaultdict

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["graph"],
            "owner": ["history"],
            "bytes_per_step": 4
            * 128
            * (64 + 512 + 64),  # the sum, the ELU's result, the output; inputs are there before
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Dynamics(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(64, 512), nn.Sigmoid(), nn.Linear(512, 64))

    def forward(self, data):
        return {"x": self.block(data["x0"] + data["u"]), "name": data["name"]}  # ALLOCATES


class Problem:
    def __init__(self, nodes):
        self.nodes = nodes
        self.history = defaultdict(list)
        self.metrics = defaultdict(list)

    def step(self, data):
        for node in self.nodes:
            data = {**data, **node(data)}
        return data

    def record(self, data):
        for key in ("x",):
            self.history[key].append(data[key])  # KEEPS
            # FIX: self.history[key].append(float(data[key].mean()))
        self.metrics["norm"].append(float(data["x"].norm()))


def solve(problem, data, steps, watch):
    for index in range(steps):
        output = problem.step({**data, "name": f"step {index}"})
        problem.record(output)
        watch.step()


if __name__ == "__main__":
    problem = Problem([Dynamics().to(DEVICE)])
    data = {"x0": torch.randn(128, 64, device=DEVICE), "u": torch.randn(128, 64, device=DEVICE)}
    watch = vramlens.LeakWatch()
    solve(problem, data, 15, watch)
