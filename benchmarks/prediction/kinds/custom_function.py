"""Autograd functions of one's own, a custom operator, checkpointing, hooks and torch.compile."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class SquaredReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        kept = x.clamp(min=0)
        ctx.save_for_backward(kept)
        return kept * kept

    @staticmethod
    def backward(ctx, gradient):
        (kept,) = ctx.saved_tensors
        return 2 * gradient * kept


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x * 8) / 8

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(StraightThrough.apply(SquaredReLU.apply(self.up(self.norm(x)))))


@torch.compile
def smooth(x, y):
    return F.cross_entropy(x.flatten(0, 1), y.flatten(), label_smoothing=0.1) + 1e-4 * x.logsumexp(-1).square().mean()


torch.manual_seed(0)
device = "cuda"
blocks = nn.ModuleList(Block(256) for _ in range(4)).to(device)
embedding, head = nn.Embedding(2000, 256).to(device), nn.Linear(256, 2000).to(device)
norms = []
for block in blocks:
    block.register_full_backward_hook(lambda module, of_input, of_output: norms.append(of_output[0].norm().item()))
optimizer = torch.optim.AdamW([*blocks.parameters(), *embedding.parameters(), *head.parameters()], fused=True)
for step in range(3):
    ids = torch.randint(0, 2000, (8, 64), device=device)
    x = embedding(ids)
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False)
    loss = smooth(head(x)[:, :-1], ids[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item(), len(norms))
