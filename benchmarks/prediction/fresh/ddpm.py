"""A small diffusion model: a U-Net with attention, an EMA copy, sampling at the end."""

import argparse
import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
from tqdm import trange


def time_embedding(t, width):
    half = width // 2
    frequencies = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
    angles = t[:, None].float() * frequencies[None]
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, inputs, outputs, width):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(width, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(t))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.skip(x)


class Attention(nn.Module):
    def __init__(self, channels, heads=4):
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.qkv = nn.Conv2d(channels, channels * 3, 1)
        self.out = nn.Conv2d(channels, channels, 1)
        self.heads = heads

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, 3, self.heads, c // self.heads, h * w).unbind(1)
        a = F.scaled_dot_product_attention(*(part.transpose(-1, -2) for part in (q, k, v)))
        return x + self.out(a.transpose(-1, -2).reshape(b, c, h, w))


class UNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.width = width
        self.mlp = nn.Sequential(nn.Linear(width, width * 4), nn.SiLU(), nn.Linear(width * 4, width * 4))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down1 = ResBlock(width, width, width * 4)
        self.pool1 = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.down2 = ResBlock(width, width * 2, width * 4)
        self.attention = Attention(width * 2)
        self.pool2 = nn.Conv2d(width * 2, width * 2, 3, stride=2, padding=1)
        self.middle = ResBlock(width * 2, width * 2, width * 4)
        self.up2 = ResBlock(width * 4, width * 2, width * 4)
        self.up1 = ResBlock(width * 3, width, width * 4)
        self.last = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x, t):
        t = self.mlp(time_embedding(t, self.width))
        a = self.down1(self.first(x), t)
        b = self.attention(self.down2(self.pool1(a), t))
        h = self.middle(self.pool2(b), t)
        h = self.up2(torch.cat([F.interpolate(h, scale_factor=2), b], 1), t)
        h = self.up1(torch.cat([F.interpolate(h, scale_factor=2), a], 1), t)
        return self.last(h)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = UNet().to(device)
    ema = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    betas = torch.linspace(1e-4, 0.02, 1000, device=device)
    alphas = torch.cumprod(1 - betas, 0)
    progress = trange(args.steps)
    for _ in progress:
        x = torch.rand(args.batch, 3, args.size, args.size, device=device) * 2 - 1
        t = torch.randint(0, 1000, (args.batch,), device=device)
        noise = torch.randn_like(x)
        a = alphas[t][:, None, None, None]
        loss = F.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for averaged, parameter in zip(ema.parameters(), model.parameters()):
                averaged.lerp_(parameter, 0.001)
        progress.set_postfix(loss=f"{loss.item():.4f}")
    with torch.no_grad():
        x = torch.randn(8, 3, args.size, args.size, device=device)
        for t in range(3, -1, -1):
            predicted = ema(x, torch.full((8,), t, device=device))
            x = (x - betas[t] / (1 - alphas[t]).sqrt() * predicted) / (1 - betas[t]).sqrt()
    print(x.clamp(-1, 1).cpu().mean())


if __name__ == "__main__":
    main()
