"""A MemoryHandler buffers log records, whose arguments are tensors that nobody formats."""

import logging
import logging.handlers
import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["container", "other"],
            "why": "a list inside the standard library's handler; the user's statement is the call that logs",
            "owner": ["buffer", "MemoryHandler", "log"],
            "bytes_per_step": 4 * 256 * 400,
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")
log = logging.getLogger("corpus.training")


def configure():
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.addHandler(logging.handlers.MemoryHandler(capacity=1_000_000, flushLevel=logging.ERROR))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(60, 400), nn.Linear(400, 2)

    def forward(self, x):
        hidden = torch.sigmoid(self.a(x))  # ALLOCATES
        log.debug("hidden activations %s", hidden)  # KEEPS
        # FIX: log.debug("hidden activations %s", hidden.shape)
        log.debug("mean %.3f", float(hidden.mean()))
        return self.b(hidden)


def main():
    configure()
    net = Net().to(DEVICE)
    watch = vramlens.LeakWatch()
    with torch.no_grad():
        for step in range(15):
            net(torch.randn(256, 60, device=DEVICE))
            log.info("step %d", step)
            watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
