"""A debugging list at module level that somebody forgot."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F  # noqa: N812

import vramlens

TRUTH = {"leaks": [{"class": ["container"], "owner": ["DEBUG_MAPS"], "bytes_per_step": 4 * 8 * 4 * 64 * 64}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")
DEBUG_MAPS = []
DEBUG_NAMES = []


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) / d**0.5).softmax(-1)
        remember(weights)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, t, d))


def remember(weights):
    DEBUG_NAMES.append(f"step {len(DEBUG_NAMES)}")
    DEBUG_MAPS.append(weights.detach().clone())  # KEEPS ALLOCATES
    # FIX: DEBUG_MAPS.append(weights.detach().max().item())


def main():
    model = Attention(64, 4).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = vramlens.LeakWatch()
    for _ in range(16):
        x = torch.randn(8, 64, 64, device=DEVICE)
        F.mse_loss(model(x), x).backward()
        optimizer.step()
        optimizer.zero_grad()
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
