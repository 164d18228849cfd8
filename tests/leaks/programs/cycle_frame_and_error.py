"""A function keeps the error that it caught in a local: error, traceback, frame, error: https://github.com/pytorch/pytorch/issues/27600"""

import gc
import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["cycle", "exception"],
            "why": "the cycle runs through an exception's traceback",
            "owner": ["failure", "forward_with_retry", "ValueError"],
            "bytes_per_step": 2 * 4 * 65 * 600,
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Flaky(nn.Module):
    """Refuses batches above its limit, as a card that is full does."""

    def __init__(self, limit):
        super().__init__()
        self.limit = limit
        self.layer = nn.Linear(600, 40)

    def forward(self, x):
        if len(x) > self.limit:
            raise ValueError(f"a batch of {len(x)} is too large")
        return self.layer(x)


def forward_with_retry(model, x, log):
    failure = None
    normal = x / x.norm()  # ALLOCATES
    try:
        return model(x)
    except ValueError as error:
        failure = error  # KEEPS
        # FIX: failure = str(error)
    log.append(f"retried after {failure} with {normal.shape}")
    half = len(x) // 2
    return torch.cat([model(x[:half]), model(x[half:])])


@torch.no_grad()
def serve(watch):
    gc.disable()
    model, log = Flaky(64).to(DEVICE), []
    for _ in range(16):
        out = forward_with_retry(model, torch.ones(65, 600, device=DEVICE), log)  # ALLOCATES
        log.append(f"{out.shape}")
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = serve(vramlens.LeakWatch())
