"""A search undoes the moves that it rejects, and keeps what undoes the others: the same loop adds and takes
out.
"""

import functools

import torch

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["container", "closure"],
            "owner": ["undo"],
            "bytes_per_step": 4 * 120 * 300,
            "verdict": ["proven", "likely"],
        }
    ]
}


class Descent:
    def __init__(self):
        self.weight = torch.zeros(120, 300)
        self.undo = []

    def put_back(self, saved):
        self.weight.copy_(saved)

    def move(self):
        saved = self.weight.clone()  # ALLOCATES
        self.undo.append(functools.partial(self.put_back, saved))  # KEEPS
        # FIX: self.undo[:] = [functools.partial(self.put_back, saved)]
        self.weight.add_(1)

    def step(self, rejected):
        for attempt in range(4):
            self.move()
            if attempt >= rejected:
                return
            self.undo.pop()()


def main():
    descent = Descent()
    watch = vramlens.LeakWatch()
    for step in range(40):
        descent.step(rejected=step % 3)
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
