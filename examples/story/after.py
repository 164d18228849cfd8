"""Trains a small transformer, as before.py does, but for the chart its layers keep a running mean: no list, no graph.

    python after.py
    vramlens run -o after.vram after.py

It runs on the CPU where there is no GPU; then there is nothing to record.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from torch import nn


class Block(nn.Module):
    """Attention and a feed-forward part, and a running mean of what the attention made of its input, for the chart."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("seen", torch.zeros(width), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        self.seen.lerp_(x.detach().mean(dim=(0, 1)), 0.1)
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """Words in, the next words out."""

    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width, width // 64) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def train(
    batch: int, steps: int, width: int, layers: int, length: int, words: int, device: str
) -> float:
    """Trains for some steps; samples a second, without the first step."""
    torch.manual_seed(0)
    model = Model(words, width, layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    began = 0.0
    for step in range(steps):
        tokens = torch.randint(words, (batch, length + 1), device=device)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 0:
            loss.item()  # waits for the GPU
            began = time.perf_counter()
    loss.item()
    return batch * (steps - 1) / (time.perf_counter() - began) if steps > 1 else 0.0


def main() -> None:
    """Reads the sizes, trains, prints the figures."""
    parser = argparse.ArgumentParser()
    for name, default in (
        ("batch", 16),
        ("steps", 12),
        ("width", 512),
        ("layers", 8),
        ("length", 256),
        ("words", 8192),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--limit-gib", type=float, help="as if the GPU had no more than this")
    sizes = vars(parser.parse_args())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    limit = sizes.pop("limit_gib")
    if limit and device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit * 2**30 / total))
    speed = train(**sizes, device=device)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    print(
        json.dumps(
            {
                **sizes,
                "device": device,
                "samples_per_second": round(speed, 2),
                "peak_allocated_bytes": peak,
            }
        )
    )


if __name__ == "__main__":
    main()
