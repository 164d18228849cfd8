"""Class-conditional diffusion on non-square images with a U-Net written by hand.

v-prediction, cosine schedule, min-SNR weights, classifier-free guidance, EMA copy, DDIM sampling. bf16 autocast, AdamW.
"""
import argparse
import copy
import math
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset):
    def __init__(self, n, h, w, classes, seed):
        g = torch.Generator().manual_seed(seed)
        self.label = torch.randint(0, classes, (n,), generator=g)
        self.phase = torch.rand(n, 3, 1, 1, generator=g) * 2 * math.pi
        self.yy, self.xx = torch.meshgrid(torch.linspace(0, 8, h), torch.linspace(0, 8, w), indexing="ij")

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        c = int(self.label[i])
        return torch.sin(self.xx * (1 + c % 4) + self.yy * (1 + c // 4) + self.phase[i]), c


def timestep_embedding(t, dim):
    freqs = torch.exp(-math.log(10000) * torch.arange(dim // 2, device=t.device) / (dim // 2))
    angles = 1000 * t[:, None] * freqs[None]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, emb, drop):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(24, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.emb = nn.Linear(emb, 2 * cout)
        self.norm2, self.conv2 = nn.GroupNorm(24, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.drop = nn.Dropout(drop)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x, e):
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.emb(F.silu(e))[:, :, None, None].chunk(2, dim=1)
        h = self.norm2(h) * (1 + scale) + shift
        return self.skip(x) + self.conv2(self.drop(F.silu(h)))


class Attention(nn.Module):
    def __init__(self, ch, heads):
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(24, ch)
        self.qkv, self.out = nn.Conv2d(ch, 3 * ch, 1), nn.Conv2d(ch, ch, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, 3, self.heads, c // self.heads, h * w).transpose(-1, -2).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(-1, -2).reshape(b, c, h, w))


class UNet(nn.Module):
    def __init__(self, base, mults, classes, depth=2, attn_from=2, drop=0.1):
        super().__init__()
        emb = 4 * base
        self.base = base
        self.time = nn.Sequential(nn.Linear(base, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.label = nn.Embedding(classes + 1, emb)  # last row: no label
        self.stem = nn.Conv2d(3, base, 3, padding=1)
        chans, ch = [base], base
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for lvl, m in enumerate(mults):
            for _ in range(depth):
                self.down.append(nn.ModuleList([ResBlock(ch, base * m, emb, drop),
                                                Attention(base * m, 4) if lvl >= attn_from else nn.Identity()]))
                ch = base * m
                chans.append(ch)
            if lvl < len(mults) - 1:
                self.down.append(nn.Conv2d(ch, ch, 3, stride=2, padding=1))
                chans.append(ch)
        self.mid1, self.mid_attn, self.mid2 = ResBlock(ch, ch, emb, drop), Attention(ch, 4), ResBlock(ch, ch, emb, drop)
        for lvl, m in reversed(list(enumerate(mults))):
            for _ in range(depth + 1):
                self.up.append(nn.ModuleList([ResBlock(ch + chans.pop(), base * m, emb, drop),
                                              Attention(base * m, 4) if lvl >= attn_from else nn.Identity()]))
                ch = base * m
            if lvl > 0:
                self.up.append(nn.Conv2d(ch, ch, 3, padding=1))
        self.head = nn.Sequential(nn.GroupNorm(24, ch), nn.SiLU(), nn.Conv2d(ch, 3, 3, padding=1))

    def forward(self, x, t, y):
        e = self.time(timestep_embedding(t, self.base)) + self.label(y)
        h = self.stem(x)
        stack = [h]
        for layer in self.down:
            h = layer[1](layer[0](h, e)) if isinstance(layer, nn.ModuleList) else layer(h)
            stack.append(h)
        h = self.mid2(self.mid_attn(self.mid1(h, e)), e)
        for layer in self.up:
            if isinstance(layer, nn.ModuleList):
                h = layer[1](layer[0](torch.cat([h, stack.pop()], dim=1), e))
            else:
                h = layer(F.interpolate(h, scale_factor=2.0, mode="nearest"))
        return self.head(h)


def alpha_sigma(t):
    return torch.cos(t * math.pi / 2), torch.sin(t * math.pi / 2)


def diffusion_loss(net, x, y, classes, p_drop=0.15):
    t = torch.rand(len(x), device=x.device) * 0.998 + 0.001
    y = torch.where(torch.rand(len(x), device=x.device) < p_drop, classes, y)
    a, s = (v[:, None, None, None] for v in alpha_sigma(t))
    noise = torch.randn_like(x)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        pred = net(a * x + s * noise, t, y)
    snr = (a / s).square().flatten()
    weight = snr.clamp(max=5.0) / (snr + 1)
    return (weight * (pred.float() - (a * noise - s * x)).square().mean(dim=(1, 2, 3))).mean()


@torch.no_grad()
def sample(net, shape, labels, classes, steps, guidance):
    x = torch.randn(shape, device=labels.device)
    ts = torch.linspace(0.999, 0.001, steps + 1, device=labels.device)
    both = torch.cat([labels, torch.full_like(labels, classes)])
    for t, nxt in zip(ts[:-1], ts[1:]):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            v = net(torch.cat([x, x]), t.expand(2 * len(x)), both).float()
        cond, free = v.chunk(2)
        v = free + guidance * (cond - free)
        a, s = alpha_sigma(t)
        x0, eps = (a * x - s * v).clamp(-1, 1), s * x + a * v
        a, s = alpha_sigma(nxt)
        x = a * x0 + s * eps
    return x


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--height", type=int, default=72)
    ap.add_argument("--width", type=int, default=104)
    ap.add_argument("--base", type=int, default=96)
    ap.add_argument("--mults", type=int, nargs="+", default=[1, 2, 3, 4])
    ap.add_argument("--classes", type=int, default=16)
    ap.add_argument("--batch", type=int, default=28)
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--samples", type=int, default=40)
    ap.add_argument("--sample-steps", type=int, default=24)
    args = ap.parse_args()
    torch.manual_seed(101)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda")
    net = UNet(args.base, args.mults, args.classes).to(device)
    ema = copy.deepcopy(net).eval().requires_grad_(False)
    print(f"U-Net with {sum(p.numel() for p in net.parameters()) / 1e6:.1f} M parameters")
    opt = torch.optim.AdamW(net.parameters(), lr=2e-4, betas=(0.9, 0.99), weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 0.05, 1.0, total_iters=15)
    loader = DataLoader(Waves(args.batch * args.steps, args.height, args.width, args.classes, 1), args.batch, shuffle=True, pin_memory=True)
    for step, (x, y) in enumerate(loader, 1):
        loss = diffusion_loss(net, x.to(device, non_blocking=True), y.to(device), args.classes)
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(ema.parameters()), list(net.parameters()), 1 - min(0.999, step / (step + 10)))
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} grad {norm.item():.3f}", flush=True)
    labels = torch.arange(args.samples, device=device) % args.classes
    images = sample(ema, (args.samples, 3, args.height, args.width), labels, args.classes, args.sample_steps, 2.5)
    with tempfile.TemporaryDirectory() as tmp:
        torch.save({"ema": ema.state_dict(), "samples": images.mul(127.5).add(127.5).clamp(0, 255).byte().cpu()}, os.path.join(tmp, "out.pt"))
    print(f"samples: mean {images.mean().item():.3f} std {images.std().item():.3f}")


if __name__ == "__main__":
    main()
