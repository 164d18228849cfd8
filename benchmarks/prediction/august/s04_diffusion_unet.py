"""Denoising diffusion on 72x72 images: U-Net with attention, cosine schedule, v-prediction, EMA and DDIM sampling."""
import argparse
import copy
import math
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Blobs(Dataset):
    """Soft coloured discs on a gradient background, in [-1, 1]."""

    def __init__(self, n, size, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.size = size
        self.centres = torch.rand(n, 3, 2, generator=g)
        self.radii = 0.05 + 0.2 * torch.rand(n, 3, generator=g)
        self.colours = torch.rand(n, 4, 3, generator=g) * 2 - 1
        axis = torch.linspace(0, 1, size)
        self.yy, self.xx = torch.meshgrid(axis, axis, indexing="ij")

    def __len__(self):
        return len(self.centres)

    def __getitem__(self, i):
        img = self.colours[i, 3][:, None, None] * self.yy[None]
        for c, r, col in zip(self.centres[i], self.radii[i], self.colours[i, :3]):
            d2 = (self.xx - c[0]) ** 2 + (self.yy - c[1]) ** 2
            img = img + col[:, None, None] * torch.exp(-d2 / (2 * r * r))
        return img.clamp(-1, 1)


def timestep_embedding(t, dim):
    half = dim // 2
    freqs = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
    angles = t.float()[:, None] * freqs[None]
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, temb, dropout=0.1):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(16, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.emb = nn.Linear(temb, 2 * cout)
        self.norm2, self.conv2 = nn.GroupNorm(16, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.dropout = nn.Dropout(dropout)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.emb(F.silu(emb))[:, :, None, None].chunk(2, dim=1)
        h = self.norm2(h) * (1 + scale) + shift
        return self.skip(x) + self.conv2(self.dropout(F.silu(h)))


class AttnBlock(nn.Module):
    def __init__(self, c, head_dim=48):
        super().__init__()
        self.heads = c // head_dim
        self.norm = nn.GroupNorm(16, c)
        self.qkv = nn.Conv2d(c, 3 * c, 1)
        self.proj = nn.Conv2d(c, c, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        qkv = self.qkv(self.norm(x)).view(b, 3, self.heads, c // self.heads, h * w).transpose(-1, -2)
        q, k, v = qkv.unbind(1)
        o = F.scaled_dot_product_attention(q, k, v)
        return x + self.proj(o.transpose(-1, -2).reshape(b, c, h, w))


class UNet(nn.Module):
    def __init__(self, base=96, mults=(1, 2, 3, 4), blocks=2, attn_levels=(2, 3)):
        super().__init__()
        temb = base * 4
        self.base = base
        self.time = nn.Sequential(nn.Linear(base, temb), nn.SiLU(), nn.Linear(temb, temb))
        self.stem = nn.Conv2d(3, base, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        skips, c = [base], base
        for level, m in enumerate(mults):
            for _ in range(blocks):
                attn = AttnBlock(base * m) if level in attn_levels else nn.Identity()
                self.down.append(nn.ModuleList([ResBlock(c, base * m, temb), attn]))
                c = base * m
                skips.append(c)
            if level < len(mults) - 1:
                self.down.append(nn.Conv2d(c, c, 3, stride=2, padding=1))
                skips.append(c)
        self.mid1, self.mid_attn, self.mid2 = ResBlock(c, c, temb), AttnBlock(c), ResBlock(c, c, temb)
        for level, m in reversed(list(enumerate(mults))):
            for _ in range(blocks + 1):
                attn = AttnBlock(base * m) if level in attn_levels else nn.Identity()
                self.up.append(nn.ModuleList([ResBlock(c + skips.pop(), base * m, temb), attn]))
                c = base * m
            if level > 0:
                self.up.append(nn.Sequential(nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(c, c, 3, padding=1)))
        self.out = nn.Sequential(nn.GroupNorm(16, c), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1))

    def forward(self, x, t):
        emb = self.time(timestep_embedding(t, self.base))
        h = self.stem(x)
        stack = [h]
        for layer in self.down:
            h = layer[1](layer[0](h, emb)) if isinstance(layer, nn.ModuleList) else layer(h)
            stack.append(h)
        h = self.mid2(self.mid_attn(self.mid1(h, emb)), emb)
        for layer in self.up:
            if isinstance(layer, nn.ModuleList):
                h = layer[1](layer[0](torch.cat([h, stack.pop()], dim=1), emb))
            else:
                h = layer(h)
        return self.out(h)


def cosine_alphas(steps, device):
    t = torch.linspace(0, 1, steps + 1, device=device)
    f = torch.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2
    return (f / f[0]).clamp(1e-5, 0.99999)[1:]


def v_loss(model, x0, abar):
    t = torch.randint(len(abar), (x0.size(0),), device=x0.device)
    a, s = abar[t].sqrt()[:, None, None, None], (1 - abar[t]).sqrt()[:, None, None, None]
    noise = torch.randn_like(x0)
    return F.mse_loss(model(a * x0 + s * noise, t), a * noise - s * x0)


@torch.no_grad()
def ddim(model, abar, n, size, steps, device):
    x = torch.randn(n, 3, size, size, device=device)
    ts = torch.linspace(len(abar) - 1, 0, steps, device=device).long()
    for i, t in enumerate(ts):
        a, s = abar[t].sqrt(), (1 - abar[t]).sqrt()
        v = model(x, t.expand(n))
        x0, eps = (a * x - s * v).clamp(-1, 1), s * x + a * v
        if i + 1 < steps:
            nxt = abar[ts[i + 1]]
            x = nxt.sqrt() * x0 + (1 - nxt).sqrt() * eps
    return x0


@torch.no_grad()
def update_ema(ema, model, decay):
    for e, p in zip(ema.parameters(), model.parameters()):
        e.lerp_(p, 1 - decay)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--size", type=int, default=72)
    ap.add_argument("--base", type=int, default=96)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--steps", type=int, default=36)
    ap.add_argument("--samples", type=int, default=30)
    ap.add_argument("--ddim-steps", type=int, default=20)
    args = ap.parse_args()

    torch.manual_seed(5)
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device("cuda")
    model = UNet(args.base).to(device)
    ema = copy.deepcopy(model).requires_grad_(False).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=10)
    abar = cosine_alphas(1000, device)
    loader = DataLoader(Blobs(args.batch * args.steps, args.size), batch_size=args.batch, shuffle=True, drop_last=True, pin_memory=True)
    held_out = torch.stack([img for img in Blobs(args.batch, args.size, seed=9)]).to(device)
    print(f"U-Net with {sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters")

    model.train()
    for step, x0 in enumerate(loader, 1):
        loss = v_loss(model, x0.to(device, non_blocking=True), abar)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        update_ema(ema, model, min(0.999, (1 + step) / (10 + step)))
        if step % 6 == 0:
            print(f"step {step:3d} loss {loss.item():.4f}")

    with torch.no_grad():
        print(f"held-out v-loss of the average {v_loss(ema, held_out, abar).item():.4f}")
    images = ddim(ema, abar, args.samples, args.size, args.ddim_steps, device)
    with tempfile.TemporaryDirectory() as d:
        torch.save({"ema": ema.state_dict()}, os.path.join(d, "ema.pt"))
        torch.save(((images + 1) * 127.5).byte().cpu(), os.path.join(d, "samples.pt"))
    print(f"samples: mean {images.mean().item():.3f} std {images.std().item():.3f}")


if __name__ == "__main__":
    main()
