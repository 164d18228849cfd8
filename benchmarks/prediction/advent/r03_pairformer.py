"""Distogram prediction from a small MSA with a pair stack (triangle updates, triangle attention) and recycling."""
from __future__ import annotations

import argparse
import copy
import logging
import random
import sys
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from einops import rearrange
from torch.utils.checkpoint import checkpoint

logger = logging.getLogger("pairformer")


@dataclass
class Config:
    c_m: int = 64
    c_z: int = 128
    heads: int = 4
    c_hidden: int = 32
    blocks: int = 8
    msa_depth: int = 48
    bins: int = 64
    aatypes: int = 22


class TriangleMultiplication(nn.Module):
    def __init__(self, c, outgoing):
        super().__init__()
        self.norm, self.norm_out = nn.LayerNorm(c), nn.LayerNorm(c)
        self.proj, self.gate = nn.Linear(c, 2 * c), nn.Linear(c, 2 * c)
        self.out, self.out_gate = nn.Linear(c, c), nn.Linear(c, c)
        self.eq = "bikc,bjkc->bijc" if outgoing else "bkic,bkjc->bijc"

    def forward(self, z):
        x = self.norm(z)
        a, b = (self.proj(x) * torch.sigmoid(self.gate(x))).chunk(2, -1)
        return torch.sigmoid(self.out_gate(x)) * self.out(self.norm_out(torch.einsum(self.eq, a, b)))


class TriangleAttention(nn.Module):
    def __init__(self, c, heads, ch, ending):
        super().__init__()
        self.h, self.ch, self.ending = heads, ch, ending
        self.norm = nn.LayerNorm(c)
        self.qkv = nn.Linear(c, 3 * heads * ch, bias=False)
        self.bias = nn.Linear(c, heads, bias=False)
        self.gate, self.out = nn.Linear(c, heads * ch), nn.Linear(heads * ch, c)

    def forward(self, z):
        if self.ending:
            z = z.transpose(1, 2)
        x = self.norm(z)
        q, k, v = rearrange(self.qkv(x), "b i j (t h c) -> t b i h j c", t=3, h=self.h)
        logits = torch.einsum("bihjc,bihkc->bihjk", q * self.ch ** -0.5, k)
        logits = logits + rearrange(self.bias(x), "b j k h -> b 1 h j k")
        o = torch.einsum("bihjk,bihkc->bihjc", logits.softmax(-1).to(v.dtype), v)
        o = self.out(torch.sigmoid(self.gate(x)) * rearrange(o, "b i h j c -> b i j (h c)"))
        return o.transpose(1, 2) if self.ending else o


class RowAttention(nn.Module):
    def __init__(self, cm, cz, heads):
        super().__init__()
        self.h = heads
        self.norm, self.norm_z = nn.LayerNorm(cm), nn.LayerNorm(cz)
        self.qkv, self.b, self.out = nn.Linear(cm, 3 * cm), nn.Linear(cz, heads, bias=False), nn.Linear(cm, cm)

    def forward(self, m, z):
        q, k, v = rearrange(self.qkv(self.norm(m)), "b s i (t h c) -> t b s h i c", t=3, h=self.h)
        bias = rearrange(self.b(self.norm_z(z)), "b i j h -> b 1 h i j").to(q.dtype)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(-1, q.shape[1], -1, -1, -1))
        return self.out(rearrange(o, "b s h i c -> b s i (h c)"))


class OuterProductMean(nn.Module):
    def __init__(self, cm, cz, c=24):
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(cm), nn.Linear(cm, c), nn.Linear(cm, c)
        self.out = nn.Linear(c * c, cz)

    def forward(self, m):
        x = self.norm(m)
        o = torch.einsum("bsic,bsjd->bijcd", self.a(x), self.b(x)) / m.shape[1]
        return self.out(o.flatten(-2))


def transition(c, n=4):
    return nn.Sequential(nn.LayerNorm(c), nn.Linear(c, n * c), nn.ReLU(), nn.Linear(n * c, c))


class Block(nn.Module):
    def __init__(self, cfg: Config, p_drop=0.15):
        super().__init__()
        self.row, self.mt = RowAttention(cfg.c_m, cfg.c_z, 4), transition(cfg.c_m)
        self.opm = OuterProductMean(cfg.c_m, cfg.c_z)
        self.tri = nn.ModuleList([TriangleMultiplication(cfg.c_z, True), TriangleMultiplication(cfg.c_z, False),
                                  TriangleAttention(cfg.c_z, cfg.heads, cfg.c_hidden, False),
                                  TriangleAttention(cfg.c_z, cfg.heads, cfg.c_hidden, True)])
        self.zt, self.p = transition(cfg.c_z), p_drop

    def drop_rows(self, x):
        if not self.training:
            return x
        mask = torch.rand(x.shape[0], 1, *x.shape[2:], device=x.device) > self.p
        return x * mask / (1 - self.p)

    def forward(self, m, z):
        m = m + self.row(m, z)
        m = m + self.mt(m)
        z = z + self.opm(m)
        for t in self.tri:
            z = z + self.drop_rows(t(z))
        return m, z + self.zt(z)


class Pairformer(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.msa, self.left, self.right = (nn.Embedding(cfg.aatypes + 1, c) for c in (cfg.c_m, cfg.c_z, cfg.c_z))
        self.relpos = nn.Embedding(65, cfg.c_z)
        self.rec_m, self.rec_z = nn.LayerNorm(cfg.c_m), nn.LayerNorm(cfg.c_z)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.blocks))
        self.disto, self.mlm = nn.Linear(cfg.c_z, cfg.bins), nn.Linear(cfg.c_m, cfg.aatypes + 1)

    def trunk(self, msa, prev):
        pos = torch.arange(msa.shape[-1], device=msa.device)
        rel = (pos[:, None] - pos[None]).clamp(-32, 32) + 32
        m = self.msa(msa)
        z = self.left(msa[:, 0])[:, :, None] + self.right(msa[:, 0])[:, None] + self.relpos(rel)
        if prev is not None:
            m = torch.cat([m[:, :1] + self.rec_m(prev[0])[:, None], m[:, 1:]], 1)
            z = z + self.rec_z(prev[1])
        for blk in self.blocks:
            if torch.is_grad_enabled():
                m, z = checkpoint(blk, m, z, use_reentrant=False)
            else:
                m, z = blk(m, z)
        return m, z

    def forward(self, msa, recycles):
        prev = None
        with torch.no_grad():
            for _ in range(recycles):
                m, z = self.trunk(msa, prev)
                prev = (m[:, 0], z)
        torch.clear_autocast_cache()
        m, z = self.trunk(msa, prev)
        return self.disto(z + z.transpose(1, 2)).float(), self.mlm(m).float()


class Chains:
    """Random-walk backbones; the MSA is a noisy copy of the query, length drawn from a few crop sizes."""

    def __init__(self, cfg, crops, seed):
        self.cfg, self.crops = cfg, crops
        self.rng, self.g = random.Random(seed), torch.Generator().manual_seed(seed)

    def sample(self):
        L = self.rng.choice(self.crops)
        step = torch.randn(L, 3, generator=self.g)
        ca = (3.8 * F.normalize(step + step.roll(1, 0), dim=-1)).cumsum(0)
        edges = torch.linspace(2.3, 21.7, self.cfg.bins - 1)
        bins = torch.bucketize(torch.cdist(ca, ca), edges)
        seq = torch.randint(0, self.cfg.aatypes, (L,), generator=self.g)
        noise = torch.rand(self.cfg.msa_depth, L, generator=self.g)
        msa = torch.where(noise < 0.3, torch.randint(0, self.cfg.aatypes, noise.shape, generator=self.g), seq)
        hide = torch.rand(msa.shape, generator=self.g) < 0.15
        return msa.masked_fill(hide, self.cfg.aatypes)[None], msa[None], hide[None], bins[None]


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--crops", type=int, nargs="+", default=[192, 256, 301])
    ap.add_argument("--blocks", type=int, default=8)
    ap.add_argument("--msa-depth", type=int, default=48)
    ap.add_argument("--steps", type=int, default=72)
    ap.add_argument("--accum", type=int, default=2)
    ap.add_argument("--val-length", type=int, default=384)
    ap.add_argument("--val-chains", type=int, default=4)
    args = ap.parse_args(argv)
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="[%(name)s] %(message)s")
    torch.manual_seed(1)
    random.seed(1)
    cfg = Config(blocks=args.blocks, msa_depth=args.msa_depth)
    model = Pairformer(cfg).to(args.device)
    ema = copy.deepcopy(model).eval().requires_grad_(False)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-6)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.05, 1.0, 20)
    data = Chains(cfg, args.crops, seed=7)
    logger.info("parameters: %.2fM", sum(p.numel() for p in model.parameters()) / 1e6)
    for step in range(args.steps):
        tot = 0.0
        for _ in range(args.accum):
            msa, target, hide, bins = (t.to(args.device) for t in data.sample())
            with torch.autocast(args.device, dtype=torch.bfloat16):
                disto, mlm = model(msa, random.randint(0, 2))
            loss = F.cross_entropy(disto.flatten(0, 2), bins.flatten()) + 0.5 * F.cross_entropy(mlm[hide], target[hide])
            (loss / args.accum).backward()
            tot += loss.item() / args.accum
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        opt.step()
        warm.step()
        opt.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 0.01)
        if step % 8 == 0:
            logger.info("step %d L=%d loss %.3f", step, msa.shape[-1], tot)
    val = Chains(cfg, [args.val_length], seed=70)
    for i in range(args.val_chains):
        msa, _, _, bins = (t.to(args.device) for t in val.sample())
        with torch.no_grad(), torch.autocast(args.device, dtype=torch.bfloat16):
            disto, _ = ema(msa, 3)
        logger.info("chain %d: top-1 bin accuracy %.3f", i, (disto.argmax(-1) == bins).float().mean().item())


if __name__ == "__main__":
    main()
