"""Pretraining steps of a Llama-like decoder: RMSNorm, rotary, GQA, SwiGLU, checkpointing.

Parameters are held in bfloat16; AdamW (foreach) keeps its moments in bfloat16 too.
"""
import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

device = "cuda"


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return h.to(x.dtype) * self.weight


def rope_table(head_dim, length, theta=500000.0):
    freqs = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), freqs)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.nh, self.nkv, self.hd = a.heads, a.kv_heads, a.dim // a.heads
        self.wq = nn.Linear(a.dim, self.nh * self.hd, bias=False)
        self.wk = nn.Linear(a.dim, self.nkv * self.hd, bias=False)
        self.wv = nn.Linear(a.dim, self.nkv * self.hd, bias=False)
        self.wo = nn.Linear(self.nh * self.hd, a.dim, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.nh, self.hd).transpose(1, 2)
        k = self.wk(x).view(b, t, self.nkv, self.hd).transpose(1, 2)
        v = self.wv(x).view(b, t, self.nkv, self.hd).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        rep = self.nh // self.nkv
        k, v = k.repeat_interleave(rep, dim=1), v.repeat_interleave(rep, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).reshape(b, t, -1))


class Layer(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.attn_norm, self.ffn_norm = RMSNorm(a.dim), RMSNorm(a.dim)
        self.attn = Attention(a)
        self.w1 = nn.Linear(a.dim, a.ffn, bias=False)
        self.w2 = nn.Linear(a.ffn, a.dim, bias=False)
        self.w3 = nn.Linear(a.dim, a.ffn, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attn(self.attn_norm(x), cos, sin)
        h = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class Decoder(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.embed = nn.Embedding(a.vocab, a.dim)
        self.layers = nn.ModuleList([Layer(a) for _ in range(a.layers)])
        self.norm = RMSNorm(a.dim)
        self.head = nn.Linear(a.dim, a.vocab, bias=False)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                std = 0.02 / math.sqrt(2 * a.layers) if name.endswith(("wo.weight", "w2.weight")) else 0.02
                nn.init.normal_(p, std=std)
        self.use_checkpoint = True

    def forward(self, tokens, cos, sin):
        x = self.embed(tokens)
        for layer in self.layers:
            if self.use_checkpoint and self.training:
                x = checkpoint(layer, x, cos, sin, use_reentrant=False)
            else:
                x = layer(x, cos, sin)
        return self.head(self.norm(x))


def make_corpus(vocab, count, seed):
    """A long stream with Zipf unigrams where each second token depends on the one before."""
    g = torch.Generator().manual_seed(seed)
    u = torch.rand(count, generator=g)
    stream = (vocab ** u - 1).long().clamp_(0, vocab - 1)
    stream[1::2] = (stream[0::2][: stream[1::2].numel()] * 31 + 7) % vocab
    return stream


def get_batch(stream, a, g):
    ix = torch.randint(stream.numel() - a.seq - 1, (a.batch,), generator=g)
    rows = torch.stack([stream[i: i + a.seq + 1] for i in ix.tolist()]).to(device)
    return rows[:, :-1], rows[:, 1:]


def main():
    p = argparse.ArgumentParser()
    for name, default in dict(dim=2048, layers=16, heads=16, kv_heads=4, ffn=5632, vocab=32000,
                              seq=2048, batch=8, steps=30, eval_steps=4).items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=default)
    p.add_argument("--lr", type=float, default=3e-4)
    a = p.parse_args()

    torch.manual_seed(1234)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = Decoder(a)
    torch.set_default_dtype(torch.float32)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters")
    cos, sin = (t.to(device, torch.bfloat16) for t in rope_table(a.dim // a.heads, a.seq))
    optimizer = torch.optim.AdamW(model.parameters(), lr=a.lr, betas=(0.9, 0.95),
                                  weight_decay=0.1, foreach=True)
    stream = make_corpus(a.vocab, 2_000_000, 7)
    g = torch.Generator().manual_seed(99)

    model.train()
    start, history = time.time(), []
    for step in range(a.steps):
        for group in optimizer.param_groups:
            group["lr"] = a.lr * min(1.0, (step + 1) / 8)
        x, y = get_batch(stream, a, g)
        logits = model(x, cos, sin)
        loss = F.cross_entropy(logits.float().view(-1, a.vocab), y.reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        history.append(loss.detach())
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f} {time.time() - start:.1f}s")

    model.eval()
    with torch.no_grad():
        losses = []
        for _ in range(a.eval_steps):
            x, y = get_batch(stream, a, g)
            logits = model(x, cos, sin)
            losses.append(F.cross_entropy(logits.view(-1, a.vocab), y.reshape(-1)).float())
    print(f"train {torch.stack(history).mean().item():.4f} eval {torch.stack(losses).mean().item():.4f} "
          f"{time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
