"""An unbounded cache on a method, keyed by a number that never comes again: https://github.com/huggingface/transformers/issues/45412"""

import functools
import os

import torch
from torch import nn

import vramlens

TRUTH = {"leaks": [{"class": ["cache"], "owner": ["embed", "cache"], "bytes_per_step": 4 * 400 * 256}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class TimestepEmbedder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("frequencies", torch.exp(-torch.arange(width // 2) / width))
        self.proj = nn.Linear(width, width)

    @functools.lru_cache(maxsize=None)  # noqa: B019, UP033  # KEEPS
    # FIX: @functools.lru_cache(maxsize=2)
    def embed(self, step, tokens):  # KEEPS
        angles = (step + torch.arange(tokens, device=self.frequencies.device))[:, None] * self.frequencies
        return torch.cat((angles.cos(), angles.sin()), dim=1)  # ALLOCATES

    def forward(self, x, step):
        return x + self.proj(self.embed(step, len(x)))


@torch.no_grad()
def denoise(model, steps, watch):
    x = torch.randn(400, 256, device=DEVICE)
    norms = []
    for step in range(steps):
        x = model(x, step) * 0.5
        norms.append(float(x.norm()))
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = denoise(TimestepEmbedder(256).to(DEVICE), 18, vramlens.LeakWatch())
