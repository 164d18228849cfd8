"""Pixel diffusion with a U-Net (v-prediction, cosine schedule), EMA weights and DDIM sampling; bf16 autocast."""
import argparse
import copy
import math
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F


def timestep_embedding(t, dim):
    half = dim // 2
    freq = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
    arg = t[:, None].float() * 1000 * freq[None]
    return torch.cat([arg.cos(), arg.sin()], -1)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, emb, dropout=0.1):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.emb = nn.Linear(emb, 2 * cout)
        self.norm2, self.conv2 = nn.GroupNorm(32, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.drop = nn.Dropout(dropout)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.emb(F.silu(emb))[:, :, None, None].chunk(2, 1)
        h = self.norm2(h) * (1 + scale) + shift
        return self.skip(x) + self.conv2(self.drop(F.silu(h)))


class Attention(nn.Module):
    def __init__(self, ch, heads=4):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = nn.GroupNorm(32, ch), nn.Conv2d(ch, 3 * ch, 1), nn.Conv2d(ch, ch, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, 3, self.heads, c // self.heads, h * w).transpose(-1, -2).unbind(1)
        o = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(o.transpose(-1, -2).reshape(b, c, h, w))


class UNet(nn.Module):
    def __init__(self, base=128, mults=(1, 2, 3), blocks=2, attn_levels=(2,), classes=10):
        super().__init__()
        emb = 4 * base
        self.base = base
        self.time = nn.Sequential(nn.Linear(base, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.label = nn.Embedding(classes + 1, emb)
        self.stem = nn.Conv2d(3, base, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        chans, ch = [base], base
        for level, m in enumerate(mults):
            for _ in range(blocks):
                layer = nn.ModuleList([ResBlock(ch, base * m, emb)])
                ch = base * m
                if level in attn_levels:
                    layer.append(Attention(ch))
                self.down.append(layer)
                chans.append(ch)
            if level < len(mults) - 1:
                self.down.append(nn.ModuleList([nn.Conv2d(ch, ch, 3, stride=2, padding=1)]))
                chans.append(ch)
        self.mid1, self.mid_attn, self.mid2 = ResBlock(ch, ch, emb), Attention(ch), ResBlock(ch, ch, emb)
        for level in reversed(range(len(mults))):
            for i in range(blocks + 1):
                layer = nn.ModuleList([ResBlock(ch + chans.pop(), base * mults[level], emb)])
                ch = base * mults[level]
                if level in attn_levels:
                    layer.append(Attention(ch))
                if level and i == blocks:
                    layer.append(nn.Sequential(nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(ch, ch, 3, padding=1)))
                self.up.append(layer)
        self.head = nn.Sequential(nn.GroupNorm(32, ch), nn.SiLU(), nn.Conv2d(ch, 3, 3, padding=1))

    @staticmethod
    def run(layer, x, emb):
        for part in layer:
            x = part(x, emb) if isinstance(part, ResBlock) else part(x)
        return x

    def forward(self, x, t, y):
        emb = self.time(timestep_embedding(t, self.base)) + self.label(y)
        x = self.stem(x)
        skips = [x]
        for layer in self.down:
            x = self.run(layer, x, emb)
            skips.append(x)
        x = self.mid2(self.mid_attn(self.mid1(x, emb)), emb)
        for layer in self.up:
            x = self.run(layer, torch.cat([x, skips.pop()], 1), emb)
        return self.head(x).float()


def alpha_sigma(t):
    return (t * math.pi / 2).cos()[:, None, None, None], (t * math.pi / 2).sin()[:, None, None, None]


def make_images(n, size, classes, g):
    labels = torch.randint(classes, (n,), generator=g)
    axis = torch.linspace(0, 2 * math.pi, size)
    phase = torch.rand(n, 3, 1, 1, generator=g) * 2 * math.pi
    wave = torch.sin(axis[None, None, :, None] * (1 + labels[:, None, None, None]) + phase)
    return wave * torch.cos(axis[None, None, None, :] + phase), labels


@torch.no_grad()
def update_ema(ema, model, decay):
    torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 1 - decay)


@torch.no_grad()
def ddim(model, labels, size, steps, guidance, classes):
    x = torch.randn(len(labels), 3, size, size, device="cuda")
    grid = torch.linspace(0.999, 0.0, steps + 1, device="cuda")
    for now, then in zip(grid[:-1], grid[1:]):
        t = now.expand(len(labels))
        with torch.autocast("cuda", dtype=torch.bfloat16):
            both = model(torch.cat([x, x]), torch.cat([t, t]), torch.cat([labels, torch.full_like(labels, classes)]))
        cond, free = both.chunk(2)
        v = free + guidance * (cond - free)
        a, s = alpha_sigma(t)
        x0, eps = (a * x - s * v).clamp(-1.5, 1.5), s * x + a * v
        a, s = alpha_sigma(then.expand(len(labels)))
        x = a * x0 + s * eps
    return x


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--size", type=int, default=60)
    p.add_argument("--base", type=int, default=128)
    p.add_argument("--batch", type=int, default=52)
    p.add_argument("--images", type=int, default=1500)
    p.add_argument("--steps", type=int, default=50)
    p.add_argument("--lr", type=float, default=2e-4)
    p.add_argument("--samples", type=int, default=44)
    args = p.parse_args()
    torch.manual_seed(2)
    g = torch.Generator().manual_seed(2)
    classes = 10
    images, labels = make_images(args.images, args.size, classes, g)

    model = UNet(args.base, classes=classes).to("cuda")
    ema = copy.deepcopy(model).eval().requires_grad_(False)
    print(f"{sum(t.numel() for t in model.parameters()) / 1e6:.1f}M parameters")
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.99), weight_decay=1e-3, foreach=True)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 10))
    for step in range(1, args.steps + 1):
        pick = torch.randint(args.images, (args.batch,), generator=g)
        x0, y = images[pick].to("cuda"), labels[pick].to("cuda")
        y = torch.where(torch.rand(len(y), device="cuda") < 0.1, torch.full_like(y, classes), y)
        t = torch.rand(len(y), device="cuda")
        a, s = alpha_sigma(t)
        noise = torch.randn_like(x0)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            pred = model(a * x0 + s * noise, t, y)
        loss = F.mse_loss(pred, a * noise - s * x0)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        update_ema(ema, model, min(0.999, (1 + step) / (10 + step)))
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} |g| {norm.item():.3f}")
    out = ddim(ema, torch.arange(args.samples, device="cuda") % classes, args.size, 15, 2.0, classes)
    print(f"samples {tuple(out.shape)} mean {out.mean().item():.3f} std {out.std().item():.3f}")
    with tempfile.TemporaryDirectory() as d:
        torch.save({"ema": ema.state_dict(), "step": args.steps}, os.path.join(d, "ema.pt"))


if __name__ == "__main__":
    main()
