"""DDPM U-Net at 64x64 with EMA, fp16 autocast + GradScaler and DDIM sampling from the EMA copy."""
import copy
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda"

CFG = dict(
    size=64, base=128, mult=(1, 2, 2, 4), blocks=2, attn_at=(16, 8), dropout=0.1,
    batch=96, steps=50, lr=2e-4, ema=0.999, timesteps=1000, sample_batch=64, sample_steps=20,
    dataset=4096,
)


def timestep_embedding(t, dim):
    half = dim // 2
    freqs = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
    args = t[:, None].float() * freqs[None]
    return torch.cat([args.cos(), args.sin()], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, emb, dropout):
        super().__init__()
        self.norm1 = nn.GroupNorm(32, cin)
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.emb = nn.Linear(emb, cout)
        self.norm2 = nn.GroupNorm(32, cout)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1)
        nn.init.zeros_(self.conv2.weight)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.emb(F.silu(emb))[:, :, None, None]
        h = self.conv2(self.dropout(F.silu(self.norm2(h))))
        return self.skip(x) + h


class SelfAttention(nn.Module):
    def __init__(self, c, heads=4):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(32, c)
        self.qkv = nn.Conv2d(c, 3 * c, 1)
        self.out = nn.Conv2d(c, c, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        qkv = self.qkv(self.norm(x)).view(b, 3, self.heads, c // self.heads, h * w)
        q, k, v = (t.transpose(-1, -2) for t in qkv.unbind(1))
        o = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(o.transpose(-1, -2).reshape(b, c, h, w))


class UNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        base, emb = c["base"], c["base"] * 4
        self.base = base
        self.time = nn.Sequential(nn.Linear(base, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.stem = nn.Conv2d(3, base, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        ch, res, skips = base, c["size"], [base]
        for level, m in enumerate(c["mult"]):
            for _ in range(c["blocks"]):
                attn = SelfAttention(base * m) if res in c["attn_at"] else nn.Identity()
                self.down.append(nn.ModuleList([ResBlock(ch, base * m, emb, c["dropout"]), attn]))
                ch = base * m
                skips.append(ch)
            if level < len(c["mult"]) - 1:
                self.down.append(nn.ModuleList([nn.Conv2d(ch, ch, 3, stride=2, padding=1)]))
                skips.append(ch)
                res //= 2
        self.mid1, self.mid_attn, self.mid2 = (ResBlock(ch, ch, emb, c["dropout"]), SelfAttention(ch),
                                               ResBlock(ch, ch, emb, c["dropout"]))
        for level, m in reversed(list(enumerate(c["mult"]))):
            for i in range(c["blocks"] + 1):
                attn = SelfAttention(base * m) if res in c["attn_at"] else nn.Identity()
                parts = [ResBlock(ch + skips.pop(), base * m, emb, c["dropout"]), attn]
                ch = base * m
                if level > 0 and i == c["blocks"]:
                    parts.append(nn.Conv2d(ch, ch, 3, padding=1))
                    res *= 2
                self.up.append(nn.ModuleList(parts))
        self.norm, self.out = nn.GroupNorm(32, ch), nn.Conv2d(ch, 3, 3, padding=1)

    def forward(self, x, t):
        emb = self.time(timestep_embedding(t, self.base))
        x = self.stem(x)
        stack = [x]
        for parts in self.down:
            x = parts[0](x) if len(parts) == 1 else parts[1](parts[0](x, emb))
            stack.append(x)
        x = self.mid2(self.mid_attn(self.mid1(x, emb)), emb)
        for parts in self.up:
            x = parts[1](parts[0](torch.cat([x, stack.pop()], dim=1), emb))
            if len(parts) == 3:
                x = parts[2](F.interpolate(x, scale_factor=2, mode="nearest"))
        return self.out(F.silu(self.norm(x)))


def synthetic_blobs(n, size, seed):
    """uint8 images of one coloured gaussian blob each, kept in host memory."""
    g = torch.Generator().manual_seed(seed)
    axis = torch.linspace(-1, 1, size)
    cx, cy, s = (torch.rand(n, 1, 1, generator=g) * 1.4 - 0.7 for _ in range(3))
    d = (axis[None, :, None] - cy) ** 2 + (axis[None, None, :] - cx) ** 2
    blob = torch.exp(-d / (0.05 + 0.1 * s.abs()))
    color = torch.rand(n, 3, 1, 1, generator=g)
    return (blob[:, None] * color * 255).to(torch.uint8)


@torch.no_grad()
def ema_update(ema, model, decay):
    for e, p in zip(ema.parameters(), model.parameters()):
        e.lerp_(p, 1 - decay)


@torch.inference_mode()
def ddim_sample(model, abar, c):
    x = torch.randn(c["sample_batch"], 3, c["size"], c["size"], device=device)
    ts = torch.linspace(c["timesteps"] - 1, 0, c["sample_steps"]).long().tolist()
    for i, t in enumerate(ts):
        with torch.autocast("cuda", dtype=torch.float16):
            eps = model(x, torch.full((x.shape[0],), t, device=device)).float()
        a = abar[t]
        b = abar[ts[i + 1]] if i + 1 < len(ts) else torch.ones_like(a)
        x0 = ((x - (1 - a).sqrt() * eps) / a.sqrt()).clamp(-1, 1)
        x = b.sqrt() * x0 + (1 - b).sqrt() * eps
    return x


def main(c=CFG):
    torch.manual_seed(0)
    model = UNet(c).to(device)
    ema = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=c["lr"], weight_decay=0.0)
    scaler = torch.amp.GradScaler("cuda")
    abar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, c["timesteps"], device=device), 0)
    data = synthetic_blobs(c["dataset"], c["size"], 3)
    start = time.time()
    for step in range(c["steps"]):
        idx = torch.randint(len(data), (c["batch"],))
        x0 = data[idx].to(device).float() / 127.5 - 1
        t = torch.randint(c["timesteps"], (len(x0),), device=device)
        noise = torch.randn_like(x0)
        a = abar[t][:, None, None, None]
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            pred = model(a.sqrt() * x0 + (1 - a).sqrt() * noise, t)
            loss = F.mse_loss(pred.float(), noise)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        ema_update(ema, model, min(c["ema"], (1 + step) / (10 + step)))
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale():.0f} {time.time() - start:.1f}s")
    samples = ddim_sample(ema, abar, c)
    print(f"sample mean {samples.mean().item():.3f} std {samples.std().item():.3f} {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
