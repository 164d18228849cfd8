"""Speculative sampling: a small draft model proposes K tokens, the big model checks them in one pass.
Batched, with static KV caches and a separate position for every sequence."""
import os
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB = 32000
PROMPT, NEW, K = 768, int(os.environ.get("NEW", "192")), 4


@dataclass
class Config:
    dim: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int


def rotate(x, pos):
    half = x.shape[-1] // 2
    freq = 10000 ** (-torch.arange(half, device=x.device).float() / half)
    ang = pos[:, :, None, None].float() * freq
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * ang.cos() - b * ang.sin(), a * ang.sin() + b * ang.cos()], -1).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, self.hd = c, c.dim // c.heads
        self.n1, self.n2 = nn.RMSNorm(c.dim), nn.RMSNorm(c.dim)
        self.q = nn.Linear(c.dim, c.dim, bias=False)
        self.kv = nn.Linear(c.dim, 2 * c.kv_heads * self.hd, bias=False)
        self.o = nn.Linear(c.dim, c.dim, bias=False)
        self.up, self.down = nn.Linear(c.dim, 2 * c.hidden, bias=False), nn.Linear(c.hidden, c.dim, bias=False)
        self.cache = None

    def forward(self, x, pos, mask):
        B, S, D = x.shape
        h = self.n1(x)
        q = rotate(self.q(h).view(B, S, self.c.heads, self.hd), pos)
        k, v = self.kv(h).view(B, S, 2 * self.c.kv_heads, self.hd).chunk(2, 2)
        row = torch.arange(B, device=x.device)[:, None]
        self.cache[0][row, pos], self.cache[1][row, pos] = rotate(k, pos), v
        rep = self.c.heads // self.c.kv_heads
        k, v = (t.transpose(1, 2).repeat_interleave(rep, 1) for t in self.cache)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=mask)
        x = x + self.o(y.transpose(1, 2).reshape(B, S, D))
        g, u = self.up(self.n2(x)).chunk(2, -1)
        return x + self.down(F.silu(g) * u)


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.emb = nn.Embedding(VOCAB, c.dim)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.norm, self.head = nn.RMSNorm(c.dim), nn.Linear(c.dim, VOCAB, bias=False)

    def setup(self, batch, length):
        w = self.emb.weight
        self.length = length
        for l in self.layers:
            shape = (batch, length, self.c.kv_heads, l.hd)
            l.cache = (torch.zeros(shape, dtype=w.dtype, device=w.device), torch.zeros(shape, dtype=w.dtype, device=w.device))

    def forward(self, ids, start, last_only=False):
        pos = start[:, None] + torch.arange(ids.shape[1], device=ids.device)
        mask = (torch.arange(self.length, device=ids.device) <= pos[:, :, None]).unsqueeze(1)
        x = self.emb(ids)
        for l in self.layers:
            x = l(x, pos, mask)
        if last_only:
            x = x[:, -1:]
        return (self.head(self.norm(x)).float() / 0.8).softmax(-1)


@torch.inference_mode()
def generate(target, draft, prompt, new):
    B, P = prompt.shape
    device = prompt.device
    length = P + new + K + 2
    target.setup(B, length)
    draft.setup(B, length)
    tokens = torch.zeros(B, length, dtype=torch.long, device=device)
    tokens[:, :P] = prompt
    zero = torch.zeros(B, dtype=torch.long, device=device)
    first = torch.multinomial(target(prompt, zero, last_only=True)[:, 0], 1)
    draft(prompt, zero, last_only=True)
    tokens[:, P:P + 1] = first
    n = torch.full((B,), P, device=device)                    # position of the newest token
    row = torch.arange(B, device=device)
    rounds = accepted = 0
    while int(n.min()) < P + new - 1:
        cur, q = tokens[row, n][:, None], []
        props = [cur]
        for j in range(K):
            p = draft(props[-1], n + j)[:, 0]
            q.append(p)
            props.append(torch.multinomial(p, 1))
        draft(props[-1], n + K)                                # so that its cache has the last proposal too
        props, q = torch.cat(props, 1), torch.stack(q, 1)      # [B, K + 1], [B, K, V]
        p = target(props, n)                                   # [B, K + 1, V]
        guess = props[:, 1:, None]
        ratio = p[:, :K].gather(2, guess) / q.gather(2, guess).clamp(min=1e-9)
        ok = (torch.rand(B, K, device=device) < ratio.squeeze(2)).long().cumprod(1)
        count = ok.sum(1)
        pick = p[row, count]
        resid = (p[:, :K] - q).clamp(min=0)
        resid = torch.cat([resid, p[:, K:]], 1)[row, count]
        pick = torch.where(resid.sum(1, keepdim=True) > 0, resid, pick)
        nxt = torch.multinomial(pick, 1).squeeze(1)
        room = (P + new - 1 - n).clamp(min=0)
        step = torch.minimum(count + 1, room)
        for j in range(1, K + 1):
            w = (j <= count) & (j <= step)
            tokens[row[w], n[w] + j] = props[w, j]
        w = (count + 1) <= step
        tokens[row[w], (n + count + 1)[w]] = nxt[w]
        n = n + step
        rounds += 1
        accepted += int(count.sum())
        if rounds % 10 == 0:
            print(f"round {rounds} positions {int(n.min()) - P}..{int(n.max()) - P} accepted {accepted / rounds / B:.2f} of {K}", flush=True)
    return tokens[:, :P + new], rounds


def main():
    torch.manual_seed(1234)
    batch = max(1, round(12 * float(os.environ.get("SCALE", "1"))))
    big = Config(1280, 20, 20, 4, 3456)
    small = Config(384, 4, 6, 2, 1024)
    target = Model(big).to("cuda", torch.bfloat16).eval()
    draft = Model(small).to("cuda", torch.bfloat16).eval()
    for m in (target, draft):                # flat distributions, so that some proposals are accepted
        m.head.weight.data.mul_(0.5)
    print(f"target {sum(p.numel() for p in target.parameters()) / 1e6:.0f}M, draft {sum(p.numel() for p in draft.parameters()) / 1e6:.0f}M")
    for trial in range(3):
        prompt = torch.randint(0, VOCAB, (batch, PROMPT), device="cuda")
        t0 = time.time()
        out, rounds = generate(target, draft, prompt, NEW)
        print(f"trial {trial}: {tuple(out.shape)} in {rounds} rounds, {batch * NEW / (time.time() - t0):.0f} tokens/s")


if __name__ == "__main__":
    main()
