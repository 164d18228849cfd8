"""The GPT that several benchmarks train: blocks of attention and a feed-forward net, as
published, nothing clever.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool = True) -> None:
        super().__init__()
        self.norm1, self.norm2, self.heads, self.causal = (
            nn.LayerNorm(width),
            nn.LayerNorm(width),
            heads,
            causal,
        )
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        )
        a = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.proj(a.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Tokens to logits.

    Args:
        context: the longest sequence; 0: without positions and without a last norm.
        tied: whether the head's weights are those of the tokens.
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        layers: int,
        heads: int = 0,
        context: int = 0,
        tied: bool = False,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width) if context else None
        self.blocks = nn.ModuleList(Block(width, heads or width // 64) for _ in range(layers))
        self.norm = nn.LayerNorm(width) if context else nn.Identity()
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
