"""Continuous batching inference of a bf16 GPT: fixed cache slots, prefill on arrival, top-p sampling, likelihood report."""
import argparse
from collections import deque
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Request:
    rid: int
    prompt: torch.Tensor
    max_new: int
    temperature: float
    tokens: list = field(default_factory=list)
    logp: float = 0.0


def rotary(x, pos, base=10000.0):
    half = x.size(-1) // 2
    freq = base ** (-torch.arange(half, device=x.device) / half)
    ang = pos[..., None].float() * freq
    cos, sin = ang.cos().to(x.dtype), ang.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Block(nn.Module):
    def __init__(self, d, heads, kv_heads):
        super().__init__()
        self.h, self.kv, self.hd = heads, kv_heads, d // heads
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.q, self.kvp = nn.Linear(d, d, bias=False), nn.Linear(d, 2 * kv_heads * self.hd, bias=False)
        self.o = nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, 2 * 3 * d, bias=False), nn.Linear(3 * d, d, bias=False)

    def qkv(self, x, pos):
        B, T, _ = x.shape
        q = self.q(x).view(B, T, self.h, self.hd).transpose(1, 2)
        k, v = self.kvp(x).view(B, T, 2, self.kv, self.hd).permute(2, 0, 3, 1, 4)
        return rotary(q, pos[:, None]), rotary(k, pos[:, None]), v

    def attend(self, x, q, k, v, **kw):
        y = F.scaled_dot_product_attention(q, k.repeat_interleave(self.h // self.kv, 1), v.repeat_interleave(self.h // self.kv, 1), **kw)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        gate, val = self.up(self.n2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * val)


class GPT(nn.Module):
    def __init__(self, vocab, d, layers, heads, kv_heads):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(Block(d, heads, kv_heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(d), nn.Linear(d, vocab, bias=False)

    def make_cache(self, slots, max_len):
        b, w = self.blocks[0], self.emb.weight
        return [torch.zeros(2, slots, b.kv, max_len, b.hd, device=w.device, dtype=w.dtype) for _ in self.blocks]

    def prefill(self, ids, cache, slot):
        T = ids.size(1)
        pos, x = torch.arange(T, device=ids.device)[None], self.emb(ids)
        for block, c in zip(self.blocks, cache):
            q, k, v = block.qkv(block.n1(x), pos)
            c[0, slot, :, :T], c[1, slot, :, :T] = k[0], v[0]
            x = block.attend(x, q, k, v, is_causal=True)
        return self.head(self.norm(x))

    def decode(self, ids, cache, slots, lengths):
        """One token for each active slot; the cache is read up to the longest of them."""
        longest = int(lengths.max()) + 1
        mask = (torch.arange(longest, device=ids.device)[None] <= lengths[:, None])[:, None, None]
        x = self.emb(ids)[:, None]
        for block, c in zip(self.blocks, cache):
            q, k, v = block.qkv(block.n1(x), lengths[:, None])
            c[0, slots, :, lengths], c[1, slots, :, lengths] = k[:, :, 0], v[:, :, 0]
            x = block.attend(x, q, c[0, slots, :, :longest], c[1, slots, :, :longest], attn_mask=mask)
        return self.head(self.norm(x))[:, -1]


def sample(logits, temperature, top_p):
    logp = F.log_softmax(logits.float(), -1)
    probs, order = (logits.float() / temperature[:, None]).softmax(-1).sort(-1, descending=True)
    probs[probs.cumsum(-1) - probs > top_p] = 0.0
    pick = order.gather(-1, torch.multinomial(probs, 1))
    return pick[:, 0], logp.gather(-1, pick)[:, 0]


class Server:
    def __init__(self, model, slots, max_len, top_p):
        self.model, self.top_p = model, top_p
        self.cache = model.make_cache(slots, max_len)
        self.free, self.active = deque(range(slots)), {}

    def admit(self, req, device):
        slot = self.free.popleft()
        prompt = req.prompt.to(device)
        logits = self.model.prefill(prompt[None], self.cache, slot)
        nll = F.cross_entropy(logits[0, :-1].float(), prompt[1:])
        tok, _ = sample(logits[:, -1], torch.tensor([req.temperature], device=device), self.top_p)
        req.tokens.append(tok.item())
        self.active[slot] = req
        return nll.item()

    def step(self, device):
        slots = torch.tensor(list(self.active), device=device)
        reqs = list(self.active.values())
        ids = torch.tensor([r.tokens[-1] for r in reqs], device=device)
        lengths = torch.tensor([len(r.prompt) + len(r.tokens) - 1 for r in reqs], device=device)
        logits = self.model.decode(ids, self.cache, slots, lengths)
        toks, lps = sample(logits, torch.tensor([r.temperature for r in reqs], device=device), self.top_p)
        done = []
        for s, r, t, lp in zip(slots.tolist(), reqs, toks.tolist(), lps.tolist()):
            r.tokens.append(t)
            r.logp += lp
            if len(r.tokens) >= r.max_new or t == 0:
                done.append(self.active.pop(s))
                self.free.append(s)
        return done


@torch.inference_mode()
def main():
    p = argparse.ArgumentParser()
    for name, default in dict(vocab=50304, d=2048, layers=12, heads=16, kv_heads=8, slots=24, max_len=2048, requests=40, max_prompt=1500, max_new=80).items():
        p.add_argument(f"--{name}", type=int, default=default)
    args = p.parse_args()
    torch.manual_seed(21)
    device = torch.device("cuda")
    model = GPT(args.vocab, args.d, args.layers, args.heads, args.kv_heads).to(device, torch.bfloat16).eval()
    server = Server(model, args.slots, args.max_len, 0.9)
    queue = deque()
    for i in range(args.requests):
        n = int(torch.randint(args.max_prompt // 8, args.max_prompt, (1,)))
        queue.append(Request(i, torch.randint(1, args.vocab, (n,)), int(torch.randint(args.max_new // 4, args.max_new + 1, (1,))), 0.7 + 0.02 * i))
    tick = 0
    while queue or server.active:
        while queue and server.free:
            req = queue.popleft()
            print(f"tick {tick} request {req.rid} prompt {len(req.prompt)} loss {server.admit(req, device):.4f}")
        for r in server.step(device):
            print(f"tick {tick} finished {r.rid}: {len(r.tokens)} tokens, mean logp {r.logp / len(r.tokens):.3f}")
        tick += 1


if __name__ == "__main__":
    main()
