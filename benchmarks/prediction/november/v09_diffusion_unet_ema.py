# Denoising diffusion with a hand-written attention U-Net, EMA weights and DDIM sampling.
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
    def __init__(self, n, size, seed):
        self.n, self.seed = n, seed
        lin = torch.linspace(-1, 1, size)
        self.yy, self.xx = torch.meshgrid(lin, lin, indexing="ij")

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + i)
        c = torch.rand(3, 2, 1, 1, generator=g) * 1.6 - 0.8
        r = torch.rand(3, 1, 1, generator=g) * 0.2 + 0.05
        d = (self.yy - c[:, 0]) ** 2 + (self.xx - c[:, 1]) ** 2
        return torch.exp(-d / r) * 2 - 1


def timestep_embedding(t, dim):
    freq = torch.exp(-math.log(10000) * torch.arange(dim // 2, device=t.device) / (dim // 2))
    ang = t[:, None].float() * freq[None]
    return torch.cat([ang.sin(), ang.cos()], -1)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, emb, drop=0.1):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(12, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.emb = nn.Linear(emb, 2 * cout)
        self.n2, self.c2 = nn.GroupNorm(12, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.drop = nn.Dropout(drop)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()
        nn.init.zeros_(self.c2.weight)

    def forward(self, x, e):
        h = self.c1(F.silu(self.n1(x)))
        scale, shift = self.emb(F.silu(e))[:, :, None, None].chunk(2, 1)
        h = self.n2(h) * (1 + scale) + shift
        return self.skip(x) + self.c2(self.drop(F.silu(h)))


class Attention(nn.Module):
    def __init__(self, ch, head=48):
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(12, ch), ch // head
        self.qkv, self.proj = nn.Conv2d(ch, 3 * ch, 1), nn.Conv2d(ch, ch, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, 3, self.heads, c // self.heads, h * w).transpose(-1, -2).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.proj(y.transpose(-1, -2).reshape(b, c, h, w))


class UNet(nn.Module):
    def __init__(self, base, mults=(1, 2, 3), blocks=2, attn_levels=(1, 2)):
        super().__init__()
        emb = base * 4
        self.base = base
        self.time = nn.Sequential(nn.Linear(base, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.inp = nn.Conv2d(3, base, 3, padding=1)
        self.downs, self.ups = nn.ModuleList(), nn.ModuleList()
        chans, ch = [base], base
        for lvl, m in enumerate(mults):
            for _ in range(blocks):
                self.downs.append(nn.ModuleList([ResBlock(ch, base * m, emb),
                                                 Attention(base * m) if lvl in attn_levels else nn.Identity()]))
                ch = base * m
                chans.append(ch)
            if lvl + 1 < len(mults):
                self.downs.append(nn.Conv2d(ch, ch, 3, stride=2, padding=1))
                chans.append(ch)
        self.mid1, self.mida, self.mid2 = ResBlock(ch, ch, emb), Attention(ch), ResBlock(ch, ch, emb)
        for lvl, m in reversed(list(enumerate(mults))):
            for _ in range(blocks + 1):
                self.ups.append(nn.ModuleList([ResBlock(ch + chans.pop(), base * m, emb),
                                               Attention(base * m) if lvl in attn_levels else nn.Identity()]))
                ch = base * m
            if lvl > 0:
                self.ups.append(nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(ch, ch, 3, padding=1)))
        self.out = nn.Sequential(nn.GroupNorm(12, ch), nn.SiLU(), nn.Conv2d(ch, 3, 3, padding=1))

    def forward(self, x, t):
        e = self.time(timestep_embedding(t, self.base))
        hs = [self.inp(x)]
        for d in self.downs:
            hs.append(d[1](d[0](hs[-1], e)) if isinstance(d, nn.ModuleList) else d(hs[-1]))
        h = self.mid2(self.mida(self.mid1(hs[-1], e)), e)
        for u in self.ups:
            h = u[1](u[0](torch.cat([h, hs.pop()], 1), e)) if isinstance(u, nn.ModuleList) else u(h)
        return self.out(h)


@torch.no_grad()
def ddim(model, alphas, shape, steps, device):
    x = torch.randn(shape, device=device)
    ts = torch.linspace(len(alphas) - 1, 0, steps, device=device).long()
    for i, t in enumerate(ts):
        a = alphas[t]
        a_next = alphas[ts[i + 1]] if i + 1 < steps else torch.ones_like(a)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            eps = model(x, t.expand(shape[0]))
        x0 = ((x - (1 - a).sqrt() * eps.float()) / a.sqrt()).clamp(-1, 1)
        x = a_next.sqrt() * x0 + (1 - a_next).sqrt() * eps.float()
    return x


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--size", type=int, default=60)
    ap.add_argument("--base", type=int, default=96)
    ap.add_argument("--batch", type=int, default=44)
    ap.add_argument("--steps", type=int, default=70)
    ap.add_argument("--timesteps", type=int, default=1000)
    ap.add_argument("--ema", type=float, default=0.995)
    ap.add_argument("--sample-steps", type=int, default=20)
    args = ap.parse_args()

    torch.manual_seed(9)
    device = torch.device("cuda")
    model = UNet(args.base).to(device)
    ema = copy.deepcopy(model).eval().requires_grad_(False)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4, betas=(0.9, 0.99))
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 20))
    s = torch.linspace(0, 1, args.timesteps + 1, device=device)
    bar = torch.cos((s + 0.008) / 1.008 * math.pi / 2) ** 2
    alphas = (bar / bar[0])[1:].clamp(min=1e-4)

    loader = DataLoader(Blobs(args.steps * args.batch, args.size, 0), batch_size=args.batch, num_workers=2, pin_memory=True)
    for step, x in enumerate(loader):
        x = x.to(device, non_blocking=True)
        t = torch.randint(0, args.timesteps, (x.size(0),), device=device)
        noise = torch.randn_like(x)
        a = alphas[t].view(-1, 1, 1, 1)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            pred = model(a.sqrt() * x + (1 - a).sqrt() * noise, t)
        loss = F.mse_loss(pred.float(), noise)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        with torch.no_grad():
            for q, k in zip(ema.parameters(), model.parameters()):
                q.lerp_(k, 1 - args.ema)
        if step % 10 == 0:
            print(f"step {step} mse {loss.item():.4f}")

    images = ddim(ema, alphas, (30, 3, args.size, args.size), args.sample_steps, device)
    print(f"samples mean {images.mean().item():.3f} std {images.std().item():.3f}")
    with tempfile.TemporaryDirectory() as tmp:
        torch.save({"ema": ema.state_dict(), "images": images.cpu()}, os.path.join(tmp, "ddpm.pt"))


if __name__ == "__main__":
    main()
