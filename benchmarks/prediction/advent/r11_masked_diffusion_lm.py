"""Absorbing-state discrete diffusion language model: compiled bidirectional transformer, EMA, ancestral unmasking sampler."""
import argparse
import contextlib
import copy
import math
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Rotary(nn.Module):
    def __init__(self, dim, max_len):
        super().__init__()
        inv = 1.0 / 10000 ** (torch.arange(0, dim, 2) / dim)
        ang = torch.arange(max_len)[:, None] * inv
        self.register_buffer("cos", ang.cos()[None, None], persistent=False)
        self.register_buffer("sin", ang.sin()[None, None], persistent=False)

    def forward(self, x):
        n = x.shape[2]
        a, b = x.float().chunk(2, -1)
        c, s = self.cos[:, :, :n], self.sin[:, :, :n]
        return torch.cat([a * c - b * s, b * c + a * s], -1).to(x.dtype)


class TimeEmbed(nn.Module):
    def __init__(self, dim, freq=256):
        super().__init__()
        self.freq = freq
        self.net = nn.Sequential(nn.Linear(freq, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, sigma):
        half = self.freq // 2
        f = torch.exp(-math.log(10000) * torch.arange(half, device=sigma.device) / half)
        a = sigma[:, None].float() * f
        return F.silu(self.net(torch.cat([a.cos(), a.sin()], -1)))


class DiTBlock(nn.Module):
    def __init__(self, d, heads, cond, ratio=4, drop=0.1):
        super().__init__()
        self.h = heads
        self.n1, self.n2 = nn.LayerNorm(d, elementwise_affine=False), nn.LayerNorm(d, elementwise_affine=False)
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.mlp = nn.Sequential(nn.Linear(d, ratio * d), nn.GELU(approximate="tanh"), nn.Linear(ratio * d, d))
        self.ada = nn.Linear(cond, 6 * d)
        nn.init.zeros_(self.ada.weight)
        nn.init.zeros_(self.ada.bias)
        self.drop = nn.Dropout(drop)

    def forward(self, x, c, rot):
        s1, b1, g1, s2, b2, g2 = self.ada(c)[:, None].chunk(6, -1)
        y = self.n1(x) * (1 + s1) + b1
        B, N, D = x.shape
        q, k, v = self.qkv(y).view(B, N, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(rot(q), rot(k), v).transpose(1, 2).reshape(B, N, D)
        x = x + g1 * self.drop(self.out(o))
        return x + g2 * self.drop(self.mlp(self.n2(x) * (1 + s2) + b2))


class Denoiser(nn.Module):
    def __init__(self, vocab, d, depth, heads, max_len, cond=128):
        super().__init__()
        self.vocab, self.mask_id = vocab, vocab
        self.emb = nn.Embedding(vocab + 1, d)
        self.t = TimeEmbed(cond)
        self.rot = Rotary(d // heads, max_len)
        self.blocks = nn.ModuleList(DiTBlock(d, heads, cond) for _ in range(depth))
        self.norm = nn.LayerNorm(d, elementwise_affine=False)
        self.ada = nn.Linear(cond, 2 * d)
        self.head = nn.Linear(d, vocab)
        nn.init.zeros_(self.head.weight)

    def forward(self, ids, sigma):
        x, c = self.emb(ids), self.t(sigma)
        for b in self.blocks:
            x = b(x, c, self.rot)
        s, b = self.ada(c)[:, None].chunk(2, -1)
        return self.head(self.norm(x) * (1 + s) + b)


class LogLinear:
    eps = 1e-3

    def alpha(self, t):
        return 1 - (1 - self.eps) * t

    def weight(self, t):
        return (1 - self.eps) / (1 - self.alpha(t))

    def sigma(self, t):
        return -torch.log(self.alpha(t))


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def update(self, model):
        torch._foreach_lerp_(self.shadow, [p.detach() for p in model.parameters()], 1 - self.decay)

    @contextlib.contextmanager
    def swap(self, model):
        backup = [p.detach().clone() for p in model.parameters()]
        with torch.no_grad():
            for p, s in zip(model.parameters(), self.shadow):
                p.copy_(s)
        yield model
        with torch.no_grad():
            for p, b in zip(model.parameters(), backup):
                p.copy_(b)


def corpus(vocab, length, seed):
    """First-order chain with Zipf marginals."""
    g = torch.Generator().manual_seed(seed)
    p = 1.0 / torch.arange(1, vocab + 1).float()
    base = torch.multinomial(p, length, replacement=True, generator=g)
    succ = torch.randperm(vocab, generator=g)
    rep = torch.rand(length, generator=g) < 0.5
    out = base.clone()
    out[1:] = torch.where(rep[1:], succ[base[:-1]], base[1:])
    return out


def loader(data, batch, n, seed):
    g = torch.Generator().manual_seed(seed)
    while True:
        s = torch.randint(0, len(data) - n, (batch,), generator=g)
        yield data[s[:, None] + torch.arange(n)]


def nelbo(fn, model, x, sched, gen):
    B = len(x)
    t = (torch.rand(1, device=x.device, generator=gen) + torch.arange(B, device=x.device) / B) % 1
    t = (1 - 1e-3) * t + 1e-3
    drop = torch.rand(x.shape, device=x.device, generator=gen) > sched.alpha(t)[:, None]
    zt = torch.where(drop, model.mask_id, x)
    logits = fn(zt, sched.sigma(t)).float()
    ce = F.cross_entropy(logits.view(-1, logits.shape[-1]), x.view(-1), reduction="none").view_as(x)
    return (ce * drop * sched.weight(t)[:, None]).sum() / x.numel()


@torch.no_grad()
def sample(model, n, length, steps, sched, device, gen):
    x = torch.full((n, length), model.mask_id, device=device)
    ts = torch.linspace(1, 1e-3, steps + 1, device=device)
    for t, s in zip(ts[:-1], ts[1:]):
        logits = model(x, sched.sigma(t).expand(n)).float()
        noise = -torch.log(-torch.log(torch.rand(logits.shape, device=device, generator=gen) + 1e-10) + 1e-10)
        pred = (logits + noise).argmax(-1)
        p_unmask = (sched.alpha(s) - sched.alpha(t)) / (1 - sched.alpha(t))
        reveal = (torch.rand(x.shape, device=device, generator=gen) < p_unmask) & (x == model.mask_id)
        x = torch.where(reveal, pred, x)
    return x


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--vocab", type=int, default=30522)
    ap.add_argument("--dim", type=int, default=768)
    ap.add_argument("--depth", type=int, default=12)
    ap.add_argument("--heads", type=int, default=12)
    ap.add_argument("--length", type=int, default=512)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--eval-every", type=int, default=75)
    ap.add_argument("--samples", type=int, default=8)
    ap.add_argument("--sample-steps", type=int, default=64)
    ap.add_argument("--no-compile", action="store_true")
    a = ap.parse_args()
    torch.manual_seed(6)
    torch.set_float32_matmul_precision("high")
    model = Denoiser(a.vocab, a.dim, a.depth, a.heads, a.length).to(a.device)
    fn = model if a.no_compile else torch.compile(model)
    ema = EMA(model, 0.999)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.999), weight_decay=0.0, fused=a.device == "cuda")
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1, (s + 1) / 40))
    sched, gen = LogLinear(), torch.Generator(a.device).manual_seed(1)
    train, valid = loader(corpus(a.vocab, 2_000_000, 0), a.batch, a.length, 1), loader(corpus(a.vocab, 200_000, 0), a.batch, a.length, 2)
    amp = lambda: torch.autocast(a.device, dtype=torch.bfloat16)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters", file=sys.stderr)
    t0 = time.time()
    for step in range(1, a.steps + 1):
        model.train()
        with amp():
            loss = nelbo(fn, model, next(train).to(a.device), sched, gen)
        loss.backward()
        gn = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        warm.step()
        opt.zero_grad(set_to_none=True)
        ema.update(model)
        if step % 25 == 0:
            print(f"{step:5d} nelbo {loss.item():.3f} gnorm {gn.item():.2f} {time.time() - t0:.1f}s", flush=True)
        if step % a.eval_every == 0:
            model.eval()
            with ema.swap(model), torch.no_grad(), amp():
                v = [nelbo(model, model, next(valid).to(a.device), sched, gen).item() for _ in range(4)]
            print(f"{step:5d} valid ppl bound {math.exp(min(sum(v) / len(v), 50)):.1f}")
    model.eval()
    with ema.swap(model), amp():
        out = sample(model, a.samples, a.length, a.sample_steps, sched, a.device, gen)
    print("distinct tokens per sample:", [len(r.unique()) for r in out.cpu()])


if __name__ == "__main__":
    main()
