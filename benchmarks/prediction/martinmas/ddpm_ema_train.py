"""Denoising diffusion with a small attention U-Net, EMA weights and DDIM sampling through torch.func.functional_call."""
import argparse
import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call
def time_embedding(t, dim):
    freq = torch.exp(-math.log(10000) * torch.arange(dim // 2, device=t.device) / (dim // 2))
    ang = t[:, None].float() * freq[None]
    return torch.cat([ang.sin(), ang.cos()], -1)

class Res(nn.Module):
    def __init__(self, i, o, emb):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(16, i), nn.Conv2d(i, o, 3, padding=1)
        self.n2, self.c2 = nn.GroupNorm(16, o), nn.Conv2d(o, o, 3, padding=1)
        self.emb = nn.Linear(emb, 2 * o)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()
    def forward(self, x, e):
        h = self.c1(F.silu(self.n1(x)))
        scale, shift = self.emb(F.silu(e))[:, :, None, None].chunk(2, 1)
        h = F.silu(self.n2(h) * (1 + scale) + shift)
        return self.skip(x) + self.c2(F.dropout(h, 0.1, self.training))

class SelfAttention(nn.Module):
    def __init__(self, ch, heads=4):
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(16, ch)
        self.qkv, self.out = nn.Conv2d(ch, 3 * ch, 1), nn.Conv2d(ch, ch, 1)
    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, 3, self.heads, c // self.heads, h * w).transpose(-1, -2).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(-1, -2).reshape(b, c, h, w))

class DiffUNet(nn.Module):
    def __init__(self, ch=128, mult=(1, 2, 2, 3), blocks=2, attn_level=2):
        super().__init__()
        emb = ch * 4
        self.ch = ch
        self.mlp = nn.Sequential(nn.Linear(ch, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.inp = nn.Conv2d(3, ch, 3, padding=1)
        self.down, self.up, skips, cur = nn.ModuleList(), nn.ModuleList(), [ch], ch
        for lvl, m in enumerate(mult):
            for _ in range(blocks):
                self.down.append(self._stage(cur, ch * m, emb, lvl >= attn_level))
                cur = ch * m
                skips.append(cur)
            if lvl < len(mult) - 1:
                self.down.append(nn.Conv2d(cur, cur, 3, stride=2, padding=1))
                skips.append(cur)
        self.mid = nn.ModuleList([Res(cur, cur, emb), SelfAttention(cur), Res(cur, cur, emb)])
        for lvl, m in reversed(list(enumerate(mult))):
            for i in range(blocks + 1):
                self.up.append(self._stage(cur + skips.pop(), ch * m, emb, lvl >= attn_level))
                cur = ch * m
            if lvl > 0:
                self.up.append(nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(cur, cur, 3, padding=1)))
        self.out = nn.Sequential(nn.GroupNorm(16, cur), nn.SiLU(), nn.Conv2d(cur, 3, 3, padding=1))
    @staticmethod
    def _stage(i, o, emb, attn):
        return nn.ModuleList([Res(i, o, emb), SelfAttention(o) if attn else nn.Identity()])
    def forward(self, x, t):
        e = self.mlp(time_embedding(t, self.ch))
        x = self.inp(x)
        hs = [x]
        for m in self.down:
            x = m[1](m[0](x, e)) if isinstance(m, nn.ModuleList) else m(x)
            hs.append(x)
        x = self.mid[2](self.mid[1](self.mid[0](x, e)), e)
        for m in self.up:
            x = m[1](m[0](torch.cat([x, hs.pop()], 1), e)) if isinstance(m, nn.ModuleList) else m(x)
        return self.out(x)
@torch.no_grad()
def ddim(model, params, abar, shape, steps, device):
    x = torch.randn(shape, device=device)
    ts = torch.linspace(len(abar) - 1, 0, steps, device=device).long()
    for i, t in enumerate(ts):
        with torch.autocast(device, dtype=torch.bfloat16):
            eps = functional_call(model, params, (x, t.expand(shape[0]))).float()
        a, nxt = abar[t], abar[ts[i + 1]] if i + 1 < steps else abar.new_ones(())
        x0 = ((x - (1 - a).sqrt() * eps) / a.sqrt()).clamp_(-1, 1)
        x = nxt.sqrt() * x0 + (1 - nxt).sqrt() * eps
    return x

def main():
    p = argparse.ArgumentParser()
    for k, v in dict(channels=128, size=64, batch=48, steps=8, samples=64, ddim=12).items():
        p.add_argument(f"--{k}", type=int, default=v)
    p.add_argument("--device", default="cuda")
    a = p.parse_args()
    torch.manual_seed(2024)
    model = DiffUNet(a.channels).to(a.device)
    ema = {k: v.detach().clone() for k, v in model.named_parameters()}
    print(f"{sum(q.numel() for q in model.parameters()) / 1e6:.1f}M parameters")
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4, betas=(0.9, 0.99))
    abar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device=a.device), 0)
    for step in range(a.steps):
        x0 = torch.rand(a.batch, 3, a.size, a.size, device=a.device) * 2 - 1
        t = torch.randint(0, 1000, (a.batch,), device=a.device)
        noise = torch.randn_like(x0)
        ab = abar[t][:, None, None, None]
        xt = ab.sqrt() * x0 + (1 - ab).sqrt() * noise
        with torch.autocast(a.device, dtype=torch.bfloat16):
            pred = model(xt, t)
        snr = ab / (1 - ab)
        loss = (snr.clamp(max=5.0) / snr * (pred.float() - noise) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        torch._foreach_lerp_(list(ema.values()), [q.detach() for q in model.parameters()], 0.005)
        print(f"step {step} loss {loss.item():.4f}")
    model.eval()
    out = ddim(model, ema, abar, (a.samples, 3, a.size, a.size), a.ddim, a.device)
    print("samples", tuple(out.shape), "std", out.std().item())

if __name__ == "__main__":
    main()
