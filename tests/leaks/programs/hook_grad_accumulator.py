"""Hooks on a gradient accumulator, in C++'s hands, one more for each round: https://github.com/deepspeedai/DeepSpeed/pull/4858"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"leaks": [{"class": ["hook"], "owner": ["hook", "reduce", "accumulators"], "bytes_per_step": 4 * 256 * 400}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Reducer:
    """Sums gradients over micro-batches into a flat buffer."""

    def __init__(self, module):
        self.module = module
        self.accumulators = [each.expand_as(each).grad_fn.next_functions[0][0] for each in module.parameters()]
        self.rounds = 0
        self.handle = None

    def begin_round(self):
        self.rounds += 1
        buffer = torch.zeros(self.module.weight.shape, device=DEVICE)  # ALLOCATES

        def reduce(*_):
            buffer.add_(self.module.weight.grad)

        accumulator = self.accumulators[0]
        self.handle = accumulator.register_hook(reduce)  # KEEPS
        # FIX: self.handle and self.handle.remove(); self.handle = accumulator.register_hook(reduce)


def main():
    module = nn.Linear(256, 400).to(DEVICE)
    reducer = Reducer(module)
    watch = vramlens.LeakWatch()
    for _ in range(14):
        reducer.begin_round()
        for _ in range(2):
            module(torch.randn(8, 256, device=DEVICE)).sum().backward()
        module.zero_grad(set_to_none=False)
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
