"""The program of the recording ``gpt`` (a GPT of 8 layers, 4 steps of AdamW), as a script that
is predicted.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class Block(nn.Module):
    def __init__(self, d: int, h: int) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down, self.h = nn.Linear(d, 4 * d), nn.Linear(4 * d, d), h

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class GPT(nn.Module):
    def __init__(
        self, vocab: int = 8192, d: int = 512, layers: int = 8, h: int = 8, ctx: int = 1024
    ) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(ctx, d)
        self.blocks = nn.ModuleList(Block(d, h) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_of(model: nn.Module, b: int, t: int, vocab: int = 8192) -> torch.Tensor:
    ids = torch.randint(0, vocab, (b, t), device="cuda")
    out = model(ids)
    return F.cross_entropy(out.view(-1, out.shape[-1]), ids.view(-1))


def main() -> None:
    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler(enabled="amp" in sys.argv)
    for _ in range(3 if "amp" in sys.argv else 4):
        with torch.autocast("cuda", dtype=torch.float16, enabled="amp" in sys.argv):
            loss = loss_of(model, 8, 512)
        scaler.scale(loss).backward()
        del loss
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)


main()
