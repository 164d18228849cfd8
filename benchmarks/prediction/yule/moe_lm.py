"""Sparse mixture-of-experts language model: top-2 routing with data dependent dispatch, SwiGLU experts, RoPE."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def rope(x, cos, sin):
    x1, x2 = x.float().chunk(2, -1)
    return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], -1).type_as(x)


class Expert(nn.Module):
    def __init__(self, d, f):
        super().__init__()
        self.gate_up, self.down = nn.Linear(d, 2 * f, bias=False), nn.Linear(f, d, bias=False)

    def forward(self, x):
        g, u = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(g) * u)


class MoE(nn.Module):
    def __init__(self, d, f, n, k):
        super().__init__()
        self.k, self.n = k, n
        self.router = nn.Linear(d, n, bias=False)
        self.experts = nn.ModuleList(Expert(d, f) for _ in range(n))
        self.register_buffer("load", torch.zeros(n), persistent=False)

    def forward(self, x):
        flat = x.reshape(-1, x.size(-1))
        with torch.autocast(x.device.type, enabled=False):
            logits = F.linear(flat.float(), self.router.weight)
        prob = logits.softmax(-1)
        w, idx = prob.topk(self.k, -1)
        w = w / w.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        counts = torch.bincount(idx.flatten(), minlength=self.n)
        for e, expert in enumerate(self.experts):
            tok, slot = torch.where(idx == e)
            if tok.numel() == 0:
                continue
            y = expert(flat[tok]) * w[tok, slot].unsqueeze(-1).to(flat.dtype)
            out.index_add_(0, tok, y.to(out.dtype))
        self.load.lerp_(counts.float() / counts.sum(), 0.1)
        aux = self.n * (prob.mean(0) * counts / counts.sum()).sum()
        z = logits.logsumexp(-1).square().mean()
        return out.view_as(x), aux + 0.1 * z


class Layer(nn.Module):
    def __init__(self, d, heads, f, n, k):
        super().__init__()
        self.h = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.moe = MoE(d, f, n, k)

    def forward(self, x, cos, sin):
        B, T, D = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(rope(q, cos, sin), rope(k, cos, sin), v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(B, T, D))
        y, aux = self.moe(self.n2(x))
        return x + y, aux


class LM(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.emb = nn.Embedding(a.vocab, a.dim)
        self.layers = nn.ModuleList(Layer(a.dim, a.heads, a.ffn, a.experts, 2) for _ in range(a.layers))
        self.norm = nn.LayerNorm(a.dim)
        nn.init.normal_(self.emb.weight, std=0.02)
        inv = 10000 ** (-torch.arange(0, a.dim // a.heads, 2).float() / (a.dim // a.heads))
        ang = torch.outer(torch.arange(a.seq).float(), inv)
        self.register_buffer("cos", ang.cos(), persistent=False)
        self.register_buffer("sin", ang.sin(), persistent=False)

    def forward(self, ids):
        x, aux = self.emb(ids), 0.0
        T = ids.size(1)
        for layer in self.layers:
            x, l = layer(x, self.cos[:T], self.sin[:T])
            aux = aux + l
        return F.linear(self.norm(x), self.emb.weight), aux / len(self.layers)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--device", default="cuda")
    defaults = dict(dim=768, heads=12, ffn=1536, layers=8, experts=8, vocab=24000, seq=1024, batch=6, steps=10)
    for name, value in defaults.items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    a = p.parse_args()
    torch.manual_seed(21)
    model = LM(a).to(a.device)
    print(f"{sum(q.numel() for q in model.parameters()) / 1e6:.1f}M parameters")
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05, foreach=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-3, total_steps=a.steps)
    for step in range(a.steps):
        T = a.seq if step >= a.steps // 2 else a.seq // 2  # short curriculum
        ids = (torch.rand(a.batch, T + 1, device=a.device).pow(4) * a.vocab).long()
        with torch.autocast(a.device, dtype=torch.bfloat16):
            logits, aux = model(ids[:, :-1])
            ce = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            loss = ce + 0.01 * aux
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        sched.step()
        load = torch.stack([l.moe.load for l in model.layers])
        print(f"step {step} T {T} ce {ce.item():.4f} aux {aux.item():.4f} max load {load.max().item():.3f}")


if __name__ == "__main__":
    main()
