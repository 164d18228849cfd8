"""DDPM on images with odd sides; EMA weights; DDIM sampling with classifier-free guidance."""
import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class Res(nn.Module):
    def __init__(self, cin, cout, temb):
        super().__init__()
        self.c1 = nn.Sequential(nn.GroupNorm(8, cin), nn.SiLU(), nn.Conv2d(cin, cout, 3, padding=1))
        self.n2, self.c2 = nn.GroupNorm(8, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.t = nn.Linear(temb, 2 * cout)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, temb):
        scale, shift = self.t(F.silu(temb))[:, :, None, None].chunk(2, 1)
        h = self.n2(self.c1(x)) * (1 + scale) + shift
        return self.skip(x) + self.c2(F.dropout(F.silu(h), 0.1, self.training))


class Attn(nn.Module):
    def __init__(self, c, heads=4):
        super().__init__()
        self.h, self.n = heads, nn.GroupNorm(8, c)
        self.qkv, self.o = nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)

    def forward(self, x):
        B, C, H, W = x.shape
        q, k, v = self.qkv(self.n(x)).view(B, 3, self.h, C // self.h, H * W).transpose(-1, -2).unbind(1)
        return x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(B, C, H, W))


class UNet(nn.Module):
    def __init__(self, ch=96, mult=(1, 2, 3, 4), classes=10):
        super().__init__()
        self.ch, te = ch, ch * 4
        self.time = nn.Sequential(nn.Linear(ch, te), nn.SiLU(), nn.Linear(te, te))
        self.label = nn.Embedding(classes + 1, te)
        self.inp = nn.Conv2d(3, ch, 3, padding=1)
        self.down, self.up, self.pool = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        c, skips = ch, [ch]
        for i, m in enumerate(mult):
            self.down.append(nn.ModuleList([Res(c, ch * m, te), Attn(ch * m) if i >= 2 else nn.Identity()]))
            c = ch * m
            skips.append(c)
            self.pool.append(nn.Conv2d(c, c, 3, 2, 1) if i < len(mult) - 1 else nn.Identity())
        self.mid = nn.ModuleList([Res(c, c, te), Attn(c), Res(c, c, te)])
        for i, m in reversed(list(enumerate(mult))):
            self.up.append(nn.ModuleList([Res(c + skips.pop(), ch * m, te), Attn(ch * m) if i >= 2 else nn.Identity()]))
            c = ch * m
        self.out = nn.Sequential(nn.GroupNorm(8, c + ch), nn.SiLU(), nn.Conv2d(c + ch, 3, 3, padding=1))

    def forward(self, x, t, y):
        ang = t[:, None].float() * torch.logspace(0, -4, self.ch // 2, device=t.device)
        emb = self.time(torch.cat([ang.sin(), ang.cos()], 1)) + self.label(y)
        hs = [h := self.inp(x)]
        for (res, att), pool in zip(self.down, self.pool):
            hs.append(att(res(h, emb)))
            h = pool(hs[-1])
        h = self.mid[2](self.mid[1](self.mid[0](h, emb)), emb)
        for res, att in self.up:
            s = hs.pop()
            h = F.interpolate(h, size=s.shape[-2:], mode="nearest")  # odd sides: 101 -> 51 -> 26 -> 13
            h = att(res(torch.cat([h, s], 1), emb))
        return self.out(torch.cat([h, hs.pop()], 1))


@torch.no_grad()
def ddim(model, abar, shape, steps, guidance, device):
    x = torch.randn(shape, device=device)
    y = torch.arange(shape[0], device=device) % 10
    ts = torch.linspace(len(abar) - 1, 0, steps, device=device).long()
    for i, t in enumerate(ts):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            e = model(torch.cat([x, x]), t.expand(2 * shape[0]), torch.cat([y, torch.full_like(y, 10)])).float()
        c, u = e.chunk(2)
        e = u + guidance * (c - u)
        nxt = abar[ts[i + 1]] if i + 1 < steps else torch.ones((), device=device)
        x = nxt.sqrt() * ((x - (1 - abar[t]).sqrt() * e) / abar[t].sqrt()).clamp_(-1, 1) + (1 - nxt).sqrt() * e
    return x


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--device", default="cuda")
    defaults = dict(batch=24, height=101, width=131, ch=96, steps=12, samples=20)
    for name, value in defaults.items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    a = p.parse_args()
    torch.manual_seed(0)
    net = UNet(a.ch).to(a.device)
    ema = copy.deepcopy(net).eval().requires_grad_(False)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-4, betas=(0.9, 0.99))
    abar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device=a.device), 0)
    for step in range(a.steps):
        x0 = torch.rand(a.batch, 3, a.height, a.width).mul_(2).sub_(1).to(a.device)
        y = torch.randint(0, 10, (a.batch,), device=a.device)
        y[torch.rand(a.batch, device=a.device) < 0.1] = 10  # drop the label for guidance
        t = torch.randint(0, 1000, (a.batch,), device=a.device)
        noise = torch.randn_like(x0)
        ab = abar[t].view(-1, 1, 1, 1)
        with torch.autocast(a.device, dtype=torch.bfloat16):
            pred = net(ab.sqrt() * x0 + (1 - ab).sqrt() * noise, t, y)
        loss = (F.mse_loss(pred.float(), noise, reduction="none") * (ab / (1 - ab)).clamp(max=5.0)).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        with torch.no_grad():
            for pe, pn in zip(ema.parameters(), net.parameters()):
                pe.lerp_(pn, 1 - min(0.999, (1 + step) / (10 + step)))
        print(f"step {step} loss {loss.item():.4f}")
    out = ddim(ema, abar, (a.samples, 3, a.height, a.width), 10, 2.0, a.device)
    print("samples", tuple(out.shape), f"mean {out.mean().item():.3f} std {out.std().item():.3f}")


if __name__ == "__main__":
    main()
