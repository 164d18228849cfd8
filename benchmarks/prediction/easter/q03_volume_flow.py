"""Rectified flow over volumes (CT-like blocks): a transformer over 3D patches with a convolutional stem and head.

Blocks are recomputed in the backward pass. An average of the weights is sampled with Heun's method under guidance.
"""
import argparse
import copy
import math
import tempfile
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def modulate(x, shift, scale):
    return x * (1 + scale[:, None]) + shift[:, None]


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.q_norm, self.k_norm = nn.RMSNorm(dim // heads), nn.RMSNorm(dim // heads)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
        nn.init.zeros_(self.ada[1].weight)
        nn.init.zeros_(self.ada[1].bias)

    def forward(self, x, c):
        b, n, d = x.shape
        s1, g1, a1, s2, g2, a2 = self.ada(c).chunk(6, dim=-1)
        q, k, v = self.qkv(modulate(self.norm1(x), s1, g1)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(self.q_norm(q).to(v.dtype), self.k_norm(k).to(v.dtype), v)
        x = x + a1[:, None] * self.proj(h.transpose(1, 2).reshape(b, n, d))
        return x + a2[:, None] * self.mlp(modulate(self.norm2(x), s2, g2))


class VolumeFlow(nn.Module):
    def __init__(self, size, dim, depth, heads, classes, stem=24, patch=4, recompute=True):
        super().__init__()
        self.grid = tuple(s // patch for s in size)
        self.recompute = recompute
        self.stem = nn.Sequential(nn.Conv3d(1, stem, 3, padding=1), nn.GroupNorm(6, stem), nn.SiLU(),
                                  nn.Conv3d(stem, stem, 3, padding=1))
        self.embed = nn.Conv3d(stem, dim, patch, stride=patch)
        self.pos = nn.Parameter(torch.randn(1, math.prod(self.grid), dim) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.label = nn.Embedding(classes + 1, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.unembed = nn.ConvTranspose3d(dim, stem, patch, stride=patch)
        self.head = nn.Sequential(nn.GroupNorm(6, 2 * stem), nn.SiLU(), nn.Conv3d(2 * stem, 1, 3, padding=1))
        nn.init.zeros_(self.head[2].weight)

    def forward(self, x, t, y):
        freq = torch.exp(-math.log(1e4) * torch.arange(128, device=x.device) / 128)
        angle = 1000 * t[:, None] * freq
        c = self.time(torch.cat([angle.cos(), angle.sin()], -1)) + self.label(y)
        skip = self.stem(x)
        h = self.embed(skip).flatten(2).transpose(1, 2) + self.pos
        for block in self.blocks:
            if self.recompute and self.training:
                h = checkpoint(block, h, c, use_reentrant=False)
            else:
                h = block(h, c)
        h = self.unembed(h.transpose(1, 2).unflatten(2, self.grid))
        return self.head(torch.cat([h, skip], 1))


def phantom(n, size, classes, generator, device):
    """Ellipsoids whose flattening follows the class."""
    axes = [torch.linspace(-1, 1, s, device=device) for s in size]
    z, y, x = torch.meshgrid(*axes, indexing="ij")
    label = torch.randint(0, classes, (n,), generator=generator).to(device)
    centre = (torch.rand(n, 3, generator=generator) * 0.6 - 0.3).to(device)
    radius = 0.25 + 0.5 * (label.float() / classes)
    def gap(a, i):
        return (a[None] - centre[:, i, None, None, None]) ** 2
    vol = gap(z, 0) + gap(y, 1) * 1.5 + gap(x, 2)
    vol = torch.sigmoid(12 * (radius[:, None, None, None] ** 2 - vol)) * 2 - 1
    return vol[:, None], label


@torch.no_grad()
def sample(model, n, size, classes, steps, guidance, device):
    x = torch.randn(n, 1, *size, device=device)
    y = torch.arange(n, device=device) % classes
    null = torch.full_like(y, classes)

    def velocity(x, t):
        with torch.autocast(device, dtype=torch.bfloat16):
            both = model(torch.cat([x, x]), torch.full((2 * n,), t, device=device), torch.cat([y, null]))
        cond, uncond = both.float().chunk(2)
        return uncond + guidance * (cond - uncond)

    dt = 1.0 / steps
    for i in range(steps):
        v = velocity(x, i * dt)
        if i == steps - 1:
            return x + dt * v
        x = x + dt * 0.5 * (v + velocity(x + dt * v, (i + 1) * dt))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--size", type=int, nargs=3, default=[48, 56, 40])
    p.add_argument("--dim", type=int, default=512)
    p.add_argument("--depth", type=int, default=12)
    p.add_argument("--heads", type=int, default=8)
    p.add_argument("--batch", type=int, default=14)
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--classes", type=int, default=6)
    p.add_argument("--lr", type=float, default=2e-4)
    p.add_argument("--sample-steps", type=int, default=12)
    p.add_argument("--samples", type=int, default=9)
    args = p.parse_args()
    device = "cuda"
    torch.manual_seed(1234)
    g = torch.Generator().manual_seed(5)

    model = VolumeFlow(args.size, args.dim, args.depth, args.heads, args.classes).to(device)
    ema = copy.deepcopy(model).eval().requires_grad_(False)
    print(f"{sum(q.numel() for q in model.parameters()) / 1e6:.1f}M parameters, grid {model.grid}")
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.01)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 8))

    for step in range(args.steps):
        x1, y = phantom(args.batch, args.size, args.classes, g, device)
        y = torch.where(torch.rand(len(y), device=device) < 0.1, torch.full_like(y, args.classes), y)
        t = torch.sigmoid(torch.randn(len(y), device=device))
        x0 = torch.randn_like(x1)
        xt = torch.lerp(x0, x1, t[:, None, None, None, None])
        with torch.autocast(device, dtype=torch.bfloat16):
            v = model(xt, t, y)
        loss = F.mse_loss(v.float(), x1 - x0)
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 0.02)
        if step % 8 == 0:
            print(f"step {step} loss {loss.item():.4f} grad {norm.item():.3f}")

    volumes = sample(ema, args.samples, args.size, args.classes, args.sample_steps, 2.5, device)
    print("sampled", tuple(volumes.shape), f"mean {volumes.mean().item():.3f} std {volumes.std().item():.3f}")
    with tempfile.TemporaryDirectory() as tmp:
        torch.save({"ema": ema.state_dict(), "opt": opt.state_dict()}, Path(tmp) / "flow.pt")
        torch.save(volumes.half().cpu(), Path(tmp) / "samples.pt")


if __name__ == "__main__":
    main()
