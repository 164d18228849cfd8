"""A notebook's cells end in an expression, and Out keeps each of them: https://github.com/pytorch/pytorch/issues/37726"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"leaks": [{"class": ["container"], "owner": ["Out", "_oh", "user_ns"], "bytes_per_step": 4 * 512 * 256}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Shell:
    """What a notebook's kernel does with a cell."""

    def __init__(self):
        self.execution_count = 1
        self.user_ns = {"In": [""], "Out": {}, "_": None}

    def run_cell(self, function, *arguments):
        result = function(*arguments)
        self.user_ns["In"].append(function.__name__)
        self.user_ns["_"] = result
        self.user_ns["Out"][self.execution_count] = result  # KEEPS
        # FIX: self.user_ns["Out"] = {self.execution_count: result}
        self.execution_count += 1


shell = Shell()
model = nn.Linear(128, 256).to(DEVICE).requires_grad_(False)
x = torch.randn(512, 128, device=DEVICE)


def look_at(scale):
    return model(x * scale)  # ALLOCATES


watch = vramlens.LeakWatch()
for cell in range(20):
    shell.run_cell(look_at, 0.1 * cell)
    watch.step()
