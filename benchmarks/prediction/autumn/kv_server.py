"""A toy LLM inference server: requests arrive over time, are batched, prefilled and decoded with a KV cache."""
import os
from collections import deque
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F

TINY = os.environ.get("TINY") == "1"


@dataclass
class ModelArgs:
    dim: int = 64 if TINY else 1024
    layers: int = 2 if TINY else 12
    heads: int = 4 if TINY else 16
    hidden: int = 128 if TINY else 2816
    vocab: int = 256 if TINY else 32000
    theta: float = 10000.0


@dataclass
class Request:
    rid: int
    arrival: int
    prompt: list
    max_new: int
    temperature: float
    out: list = field(default_factory=list)


def rope(x, pos, theta):
    d = x.size(-1)
    inv = theta ** (-torch.arange(0, d, 2, device=x.device).float() / d)
    ang = pos[:, None, :, None].float() * inv
    cos, sin = ang.cos(), ang.sin()
    x1, x2 = x.float().chunk(2, -1)
    return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], -1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.a = a
        self.wqkv = nn.Linear(a.dim, 3 * a.dim, bias=False)
        self.wo = nn.Linear(a.dim, a.dim, bias=False)

    def forward(self, x, pos, mask, past):
        B, S, D = x.shape
        q, k, v = (t.view(B, S, self.a.heads, -1).transpose(1, 2) for t in self.wqkv(x).chunk(3, -1))
        q, k = rope(q, pos, self.a.theta), rope(k, pos, self.a.theta)
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.wo(y.transpose(1, 2).reshape(B, S, D)), (k, v)


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.attn = Attention(a)
        self.n1, self.n2 = nn.RMSNorm(a.dim), nn.RMSNorm(a.dim)
        self.gate = nn.Linear(a.dim, a.hidden, bias=False)
        self.up = nn.Linear(a.dim, a.hidden, bias=False)
        self.down = nn.Linear(a.hidden, a.dim, bias=False)

    def forward(self, x, pos, mask, past):
        y, kv = self.attn(self.n1(x), pos, mask, past)
        x = x + y
        z = self.n2(x)
        return x + self.down(F.silu(self.gate(z)) * self.up(z)), kv


class LM(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.emb = nn.Embedding(a.vocab, a.dim)
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.layers))
        self.norm = nn.RMSNorm(a.dim)
        self.head = nn.Linear(a.dim, a.vocab, bias=False)

    def forward(self, ids, pos, mask, cache=None):
        x = self.emb(ids)
        new_cache = []
        for i, b in enumerate(self.blocks):
            x, kv = b(x, pos, mask, None if cache is None else cache[i])
            new_cache.append(kv)
        return self.head(self.norm(x)).float(), new_cache


class Engine:
    def __init__(self, model, device, max_batch):
        self.model, self.device, self.max_batch = model, device, max_batch
        self.queue = deque()
        self.finished = []

    @torch.inference_mode()
    def run_batch(self, reqs):
        B = len(reqs)
        L = max(len(r.prompt) for r in reqs)
        ids = torch.zeros(B, L, dtype=torch.long)
        valid = torch.zeros(B, L, dtype=torch.bool)
        for i, r in enumerate(reqs):  # left padding
            ids[i, L - len(r.prompt):] = torch.tensor(r.prompt)
            valid[i, L - len(r.prompt):] = True
        ids, valid = ids.to(self.device), valid.to(self.device)
        pos = (valid.long().cumsum(1) - 1).clamp(min=0)
        causal = torch.ones(L, L, dtype=torch.bool, device=self.device).tril()
        mask = causal & valid[:, None, None, :]
        mask = mask | torch.eye(L, dtype=torch.bool, device=self.device)  # padded rows attend to themselves

        logits, cache = self.model(ids, pos, mask)
        nll = F.cross_entropy(logits[:, :-1].reshape(-1, logits.size(-1)), ids[:, 1:].reshape(-1), reduction="none")
        prompt_nll = (nll.view(B, L - 1) * valid[:, :-1]).sum(1) / valid[:, :-1].sum(1)
        last = logits[:, -1]
        del logits, nll
        next_pos = pos[:, -1:] + 1
        active = list(reqs)
        while active:
            temps = torch.tensor([r.temperature for r in active], device=self.device)
            tok = torch.multinomial((last / temps[:, None]).softmax(-1), 1)
            for r, t in zip(active, tok.view(-1).tolist()):
                r.out.append(t)
            keep = [i for i, r in enumerate(active) if len(r.out) < r.max_new]
            if len(keep) < len(active):
                self.finished += [r for r in active if len(r.out) >= r.max_new]
                active = [active[i] for i in keep]
                if not active:
                    break
                sel = torch.tensor(keep, device=self.device)
                cache = [(k[sel], v[sel]) for k, v in cache]
                tok, next_pos, valid = tok[sel], next_pos[sel], valid[sel]
            valid = torch.cat([valid, torch.ones(len(active), 1, dtype=torch.bool, device=self.device)], 1)
            logits, cache = self.model(tok, next_pos, valid[:, None, None, :], cache)
            last = logits[:, -1]
            next_pos = next_pos + 1
        return prompt_nll.mean().item(), L

    def serve(self, requests):
        pending = deque(sorted(requests, key=lambda r: r.arrival))
        clock, n = 0, 0
        while pending or self.queue:
            while pending and pending[0].arrival <= clock:
                self.queue.append(pending.popleft())
            if not self.queue:
                clock = pending[0].arrival
                continue
            batch = [self.queue.popleft() for _ in range(min(self.max_batch, len(self.queue)))]
            nll, L = self.run_batch(batch)
            clock += max(r.max_new for r in batch)
            n += 1
            print(f"batch {n}: {len(batch)} requests, padded prompt {L}, prompt nll {nll:.3f}, clock {clock}")


def make_requests(n, vocab, seed):
    g = torch.Generator().manual_seed(seed)
    reqs, t = [], 0
    lo, hi = (4, 24) if TINY else (48, 640)
    for i in range(n):
        t += int(torch.randint(0, 8, (1,), generator=g))
        plen = int(torch.randint(lo, hi, (1,), generator=g))
        if i % 9 == 5:  # someone pastes a whole document
            plen = hi * 2 + int(torch.randint(0, hi // 2, (1,), generator=g))
        prompt = torch.randint(1, vocab, (plen,), generator=g).tolist()
        new = int(torch.randint(4, 12 if TINY else 40, (1,), generator=g))
        reqs.append(Request(i, t, prompt, new, 0.7 + 0.1 * (i % 5)))
    return reqs


def main():
    torch.manual_seed(99)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    args = ModelArgs()
    model = LM(args).to(device=device, dtype=torch.bfloat16).eval()
    max_batch = max(1, round((3 if TINY else 8) * float(os.environ.get("SCALE", "1"))))
    engine = Engine(model, device, max_batch)
    engine.serve(make_requests(8 if TINY else 30, args.vocab, seed=4))
    print("served", len(engine.finished), "tokens", sum(len(r.out) for r in engine.finished))
    print("done")


if __name__ == "__main__":
    main()
