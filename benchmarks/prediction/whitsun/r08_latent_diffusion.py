"""Class-conditional latent diffusion on synthetic glyph images: autoencoder, denoiser with EMA, DDIM sampling."""
import argparse
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def gn(c):
    return nn.GroupNorm(next(g for g in (16, 12, 10, 8, 6, 5, 4, 2, 1) if c % g == 0), c)


class Res(nn.Module):
    def __init__(self, cin, cout, emb=None, drop=0.0):
        super().__init__()
        self.a = nn.Sequential(gn(cin), nn.SiLU(), nn.Conv2d(cin, cout, 3, padding=1))
        self.b = nn.Sequential(gn(cout), nn.SiLU(), nn.Dropout(drop), nn.Conv2d(cout, cout, 3, padding=1))
        self.e = nn.Linear(emb, cout) if emb else None
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, emb=None):
        h = self.a(x)
        if self.e is not None:
            h = h + self.e(F.silu(emb))[:, :, None, None]
        return self.skip(x) + self.b(h)


class Attn(nn.Module):
    def __init__(self, c, heads):
        super().__init__()
        self.norm, self.heads = gn(c), heads
        self.qkv, self.proj = nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, 3, self.heads, c // self.heads, h * w).transpose(-1, -2).contiguous().unbind(1)
        o = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(b, c, h, w)
        return x + self.proj(o)


class AutoEncoder(nn.Module):
    def __init__(self, width=72, z=5):
        super().__init__()
        w = width
        self.enc = nn.Sequential(nn.Conv2d(3, w, 3, padding=1), Res(w, w), nn.Conv2d(w, w, 3, 2, 1), Res(w, 2 * w),
                                 nn.Conv2d(2 * w, 2 * w, 3, 2, 1), Res(2 * w, 2 * w), gn(2 * w), nn.SiLU(),
                                 nn.Conv2d(2 * w, 2 * z, 3, padding=1))
        self.dec = nn.Sequential(nn.Conv2d(z, 2 * w, 3, padding=1), Res(2 * w, 2 * w), nn.Upsample(scale_factor=2),
                                 nn.Conv2d(2 * w, 2 * w, 3, padding=1), Res(2 * w, w), nn.Upsample(scale_factor=2),
                                 nn.Conv2d(w, w, 3, padding=1), Res(w, w), gn(w), nn.SiLU(), nn.Conv2d(w, 3, 3, padding=1))

    def encode(self, x):
        mu, logvar = self.enc(x).chunk(2, 1)
        return mu, logvar.clamp(-20, 10)

    def forward(self, x):
        mu, logvar = self.encode(x)
        kl = 0.5 * (mu.float() ** 2 + logvar.float().exp() - 1 - logvar.float()).mean()
        return self.dec(mu + torch.randn_like(mu) * (0.5 * logvar).exp()), kl


class Denoiser(nn.Module):
    def __init__(self, z, classes, base, mults=(1, 2, 3), ckpt_level=2):
        super().__init__()
        emb = base * 4
        self.base, self.ckpt_level = base, ckpt_level
        self.time = nn.Sequential(nn.Linear(base, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.cls = nn.Embedding(classes + 1, emb)
        self.inp = nn.Conv2d(z, base, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        chans, c = [base], base
        for i, m in enumerate(mults):
            for _ in range(2):
                self.down.append(nn.ModuleDict({"res": Res(c, base * m, emb, 0.1), "att": Attn(base * m, 4 * m) if i else nn.Identity()}))
                c = base * m
                chans.append(c)
            if i < len(mults) - 1:
                self.down.append(nn.ModuleDict({"pool": nn.Conv2d(c, c, 3, 2, 1)}))
                chans.append(c)
        self.mid = nn.ModuleList([Res(c, c, emb), Attn(c, 8), Res(c, c, emb)])
        for i, m in reversed(list(enumerate(mults))):
            for j in range(3):
                self.up.append(nn.ModuleDict({"res": Res(c + chans.pop(), base * m, emb, 0.1), "att": Attn(base * m, 4 * m) if i else nn.Identity()}))
                c = base * m
            if i:
                self.up.append(nn.ModuleDict({"conv": nn.Conv2d(c, c, 3, padding=1)}))
        self.out = nn.Sequential(gn(c), nn.SiLU(), nn.Conv2d(c, z, 3, padding=1))

    def _unit(self, blk, x, emb):
        if self.training and x.shape[1] >= self.base * self.ckpt_level:
            return checkpoint(lambda y, e: blk["att"](blk["res"](y, e)), x, emb, use_reentrant=False)
        return blk["att"](blk["res"](x, emb))

    def forward(self, x, t, y):
        freq = torch.exp(-math.log(10000) * torch.arange(self.base // 2, device=x.device) / (self.base // 2))
        ang = t[:, None].float() * freq
        emb = self.time(torch.cat([ang.cos(), ang.sin()], 1)) + self.cls(y)
        skips = [x := self.inp(x)]
        for blk in self.down:
            x = blk["pool"](x) if "pool" in blk else self._unit(blk, x, emb)
            skips.append(x)
        x = self.mid[2](self.mid[1](self.mid[0](x, emb)), emb)
        for blk in self.up:
            if "conv" in blk:
                x = blk["conv"](F.interpolate(x, size=skips[-1].shape[-2:], mode="nearest"))
                continue
            x = self._unit(blk, torch.cat([x, skips.pop()], 1), emb)
        return self.out(x)


def glyphs(n, size, classes, device, gen):
    y = torch.randint(classes, (n,), device=device, generator=gen)
    lin = torch.linspace(-1, 1, size, device=device)
    (gy, gx), ang = torch.meshgrid(lin, lin, indexing="ij"), (y.float() / classes * math.pi)[:, None, None]
    wave = torch.sin((gx * ang.cos() + gy * ang.sin()) * (6 + y.float()[:, None, None] % 7) + torch.rand(n, 1, 1, device=device, generator=gen) * 6.28)
    tint = torch.rand(n, 3, 1, 1, device=device, generator=gen)
    img = (wave[:, None] * tint).clamp(-1, 1)
    return img.contiguous(memory_format=torch.channels_last), y


def train_ae(ae, a, dev, gen):
    opt = torch.optim.AdamW(ae.parameters(), lr=3e-4)
    for i in range(a.ae_steps):
        x, _ = glyphs(a.ae_batch, a.size, a.classes, dev, gen)
        with torch.autocast(dev.type, dtype=torch.bfloat16):
            rec, kl = ae(x)
            loss = F.l1_loss(rec.float(), x) + 1e-4 * kl
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if i % 25 == 0:
            print(f"[ae] {i} l1+kl {loss.item():.4f}", flush=True)


def train_denoiser(net, ema, ae, abar, a, dev, gen):
    opt = torch.optim.AdamW(net.parameters(), lr=2e-4, weight_decay=0.01)
    net.train()
    for i in range(a.steps):
        x, y = glyphs(a.batch, a.size, a.classes, dev, gen)
        with torch.autocast(dev.type, dtype=torch.bfloat16):
            with torch.no_grad():
                z = ae.encode(x)[0].float()
            t = torch.randint(1000, (a.batch,), device=dev, generator=gen)
            y = y.masked_fill(torch.rand(a.batch, device=dev, generator=gen) < 0.1, a.classes)
            noise = torch.randn(z.shape, device=dev, generator=gen)
            s = abar[t][:, None, None, None]
            loss = F.mse_loss(net(s.sqrt() * z + (1 - s).sqrt() * noise, t, y).float(), noise)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(list(ema.parameters()), list(net.parameters()), 1 - a.ema)
        if i % 25 == 0:
            print(f"[ldm] {i} mse {loss.item():.4f}", flush=True)


@torch.no_grad()
def sample(ema, ae, abar, a, dev, z_ch):
    ema.eval()
    z = torch.randn(a.samples, z_ch, a.size // 4, a.size // 4, device=dev)
    y = torch.arange(a.samples, device=dev) % a.classes
    ts = torch.linspace(999, 0, a.ddim, device=dev).long()
    with torch.autocast(dev.type, dtype=torch.bfloat16):
        for j, t in enumerate(ts):
            tt = t.expand(2 * a.samples)
            cond, free = ema(torch.cat([z, z]), tt, torch.cat([y, torch.full_like(y, a.classes)])).float().chunk(2)
            eps = free + 3.0 * (cond - free)
            s, nxt = abar[t], abar[ts[j + 1]] if j + 1 < len(ts) else torch.ones((), device=dev)
            x0 = ((z - (1 - s).sqrt() * eps) / s.sqrt()).clamp(-6, 6)
            z = nxt.sqrt() * x0 + (1 - nxt).sqrt() * eps
        imgs = torch.cat([ae.dec(part).float().cpu() for part in z.split(a.decode_chunk)])
    print("samples", tuple(imgs.shape), "mean", round(imgs.mean().item(), 4))


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--device", default="cuda")
    for name, val in dict(size=216, classes=19, ae_steps=110, ae_batch=18, steps=200, batch=56, base=120, samples=30,
                          ddim=40, decode_chunk=10, seed=17).items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=val)
    p.add_argument("--ema", type=float, default=0.995)
    a = p.parse_args()
    torch.manual_seed(a.seed)
    dev = torch.device(a.device)
    gen, z_ch = torch.Generator(dev).manual_seed(a.seed), 5
    ae = AutoEncoder(z=z_ch).to(dev, memory_format=torch.channels_last)
    train_ae(ae, a, dev, gen)
    ae.eval().requires_grad_(False)
    net = Denoiser(z_ch, a.classes, a.base).to(dev, memory_format=torch.channels_last)
    ema = copy.deepcopy(net).requires_grad_(False)
    abar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device=dev), 0)
    train_denoiser(net, ema, ae, abar, a, dev, gen)
    sample(ema, ae, abar, a, dev, z_ch)


if __name__ == "__main__":
    main()
