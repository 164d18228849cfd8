"""Curves for a plot are kept as NumPy arrays, which share the memory of the tensors."""

import torch
from torch import nn

import vramlens

TRUTH = {"leaks": [{"class": ["container"], "owner": ["curves"], "bytes_per_step": 4 * 120 * 300}]}


class Plotter:
    def __init__(self):
        self.curves = []

    def add(self, output):
        self.curves.append(output.detach().numpy())  # KEEPS
        # FIX: self.curves.append(output.mean().item())


def main():
    plotter, model = Plotter(), nn.Linear(20, 300)
    watch = vramlens.LeakWatch()
    for _ in range(12):
        output = model(torch.randn(120, 20))  # ALLOCATES
        plotter.add(output)
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
