"""Pixel-space DDPM: U-Net, fp16 with GradScaler, EMA weights and DDIM sampling at the end."""
import argparse
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def timestep_embedding(t, dim):
    half = dim // 2
    freqs = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
    ang = t[:, None].float() * freqs[None]
    return torch.cat([ang.cos(), ang.sin()], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, emb, dropout):
        super().__init__()
        self.norm1 = nn.GroupNorm(32, cin)
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.emb = nn.Linear(emb, 2 * cout)
        self.norm2 = nn.GroupNorm(32, cout)
        self.drop = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1)
        nn.init.zeros_(self.conv2.weight)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, e):
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.emb(F.silu(e))[:, :, None, None].chunk(2, dim=1)
        h = self.norm2(h) * (1 + scale) + shift
        h = self.conv2(self.drop(F.silu(h)))
        return self.skip(x) + h


class SelfAttention(nn.Module):
    def __init__(self, ch, heads=4):
        super().__init__()
        self.norm = nn.GroupNorm(32, ch)
        self.qkv = nn.Conv2d(ch, 3 * ch, 1)
        self.proj = nn.Conv2d(ch, ch, 1)
        self.heads = heads

    def forward(self, x):
        b, c, h, w = x.shape
        qkv = self.qkv(self.norm(x)).reshape(b, 3, self.heads, c // self.heads, h * w)
        q, k, v = qkv.transpose(-1, -2).unbind(1)
        out = F.scaled_dot_product_attention(q, k, v)
        return x + self.proj(out.transpose(-1, -2).reshape(b, c, h, w))


class Stage(nn.Module):
    def __init__(self, cin, cout, emb, dropout, attn):
        super().__init__()
        self.res = ResBlock(cin, cout, emb, dropout)
        self.attn = SelfAttention(cout) if attn else None

    def forward(self, x, e):
        x = self.res(x, e)
        return x if self.attn is None else self.attn(x)


class UNet(nn.Module):
    def __init__(self, base=128, mults=(1, 2, 2, 4), blocks=2, attn_levels=(2, 3), dropout=0.1):
        super().__init__()
        emb = base * 4
        self.base = base
        self.time = nn.Sequential(nn.Linear(base, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.stem = nn.Conv2d(3, base, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        chans, c = [base], base
        for lvl, m in enumerate(mults):
            for _ in range(blocks):
                self.down.append(Stage(c, base * m, emb, dropout, lvl in attn_levels))
                c = base * m
                chans.append(c)
            if lvl < len(mults) - 1:
                self.down.append(nn.Conv2d(c, c, 3, stride=2, padding=1))
                chans.append(c)
        self.mid = nn.ModuleList([Stage(c, c, emb, dropout, True), Stage(c, c, emb, dropout, False)])
        for lvl, m in reversed(list(enumerate(mults))):
            for _ in range(blocks + 1):
                self.up.append(Stage(c + chans.pop(), base * m, emb, dropout, lvl in attn_levels))
                c = base * m
            if lvl > 0:
                self.up.append(nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(c, c, 3, padding=1)))
        self.out = nn.Sequential(nn.GroupNorm(32, c), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1))

    def forward(self, x, t):
        e = self.time(timestep_embedding(t, self.base))
        h = self.stem(x)
        skips = [h]
        for layer in self.down:
            h = layer(h, e) if isinstance(layer, Stage) else layer(h)
            skips.append(h)
        for layer in self.mid:
            h = layer(h, e)
        for layer in self.up:
            h = layer(torch.cat([h, skips.pop()], dim=1), e) if isinstance(layer, Stage) else layer(h)
        return self.out(h)


@torch.no_grad()
def ema_update(ema, model, decay):
    for pe, pm in zip(ema.parameters(), model.parameters()):
        pe.lerp_(pm, 1 - decay)


@torch.no_grad()
def ddim_sample(model, abar, n, size, steps, device):
    x = torch.randn(n, 3, size, size, device=device)
    times = torch.linspace(len(abar) - 1, 0, steps).long().tolist()
    for i, t in enumerate(times):
        with torch.autocast(device.type, dtype=torch.float16):
            eps = model(x, torch.full((n,), t, device=device)).float()
        a = abar[t]
        a_prev = abar[times[i + 1]] if i + 1 < steps else torch.ones_like(a)
        x0 = ((x - (1 - a).sqrt() * eps) / a.sqrt()).clamp(-1, 1)
        x = a_prev.sqrt() * x0 + (1 - a_prev).sqrt() * eps
    return x


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--size", type=int, default=64)
    p.add_argument("--batch", type=int, default=80)
    p.add_argument("--base", type=int, default=128)
    p.add_argument("--steps", type=int, default=6)
    p.add_argument("--samples", type=int, default=144)
    p.add_argument("--sample-steps", type=int, default=10)
    p.add_argument("--lr", type=float, default=1e-4)
    args = p.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(42)
    torch.backends.cudnn.benchmark = True
    model = UNet(base=args.base).to(device)
    ema = copy.deepcopy(model).eval().requires_grad_(False)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
    abar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device=device), dim=0)
    print(f"{sum(q.numel() for q in model.parameters()) / 1e6:.1f}M parameters")

    for step in range(args.steps):
        x = torch.randn(args.batch, 3, args.size, args.size).clamp(-1, 1).to(device)
        t = torch.randint(0, 1000, (args.batch,), device=device)
        noise = torch.randn_like(x)
        a = abar[t].view(-1, 1, 1, 1)
        noisy = a.sqrt() * x + (1 - a).sqrt() * noise
        with torch.autocast(device.type, dtype=torch.float16):
            loss = F.mse_loss(model(noisy, t), noise)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        ema_update(ema, model, 0.999)
        print(f"step {step} mse {loss.item():.4f} scale {scaler.get_scale():.0f}")

    imgs = ddim_sample(ema, abar, args.samples, args.size, args.sample_steps, device)
    print("samples", tuple(imgs.shape), f"mean {imgs.mean().item():.3f} std {imgs.std().item():.3f}")


if __name__ == "__main__":
    main()
