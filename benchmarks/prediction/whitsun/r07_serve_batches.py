"""An in-process text generation server: slot-based key/value pool, continuous batching, chunked prefill."""
import argparse
import collections
import dataclasses
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from einops import rearrange, repeat


@dataclasses.dataclass
class ModelArgs:
    dim: int = 1920
    layers: int = 22
    heads: int = 15
    kv_heads: int = 5
    ffn: int = 5184
    vocab: int = 48000

    @property
    def head_dim(self):
        return self.dim // self.heads


@dataclasses.dataclass
class Request:
    rid: int
    arrive: int
    prompt: torch.Tensor
    max_new: int
    slot: int = -1
    filled: int = 0
    out: list = dataclasses.field(default_factory=list)


class KVPool:
    def __init__(self, m, slots, max_len, device, dtype):
        shape = (m.layers, slots, m.kv_heads, max_len, m.head_dim)
        self.k = torch.zeros(shape, device=device, dtype=dtype)
        self.v = torch.zeros(shape, device=device, dtype=dtype)
        self.free = collections.deque(range(slots))
        self.max_len = max_len


def rope_table(dim, length, device, base=50000.0):
    freq = base ** (-torch.arange(0, dim, 2, device=device).float() / dim)
    ang = torch.outer(torch.arange(length, device=device).float(), freq)
    return torch.stack([ang.cos(), ang.sin()])


def rotate(x, table, pos):
    cos, sin = table[0][pos].unsqueeze(1), table[1][pos].unsqueeze(1)
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.m = m
        kv = m.kv_heads * m.head_dim
        self.n1, self.n2 = nn.RMSNorm(m.dim, eps=1e-6), nn.RMSNorm(m.dim, eps=1e-6)
        self.qkv = nn.Linear(m.dim, m.dim + 2 * kv, bias=False)
        self.o = nn.Linear(m.dim, m.dim, bias=False)
        self.gate_up = nn.Linear(m.dim, 2 * m.ffn, bias=False)
        self.down = nn.Linear(m.ffn, m.dim, bias=False)

    def forward(self, x, pos, slots, kc, vc, table, span):
        m = self.m
        kv = m.kv_heads * m.head_dim
        q, k, v = self.qkv(self.n1(x)).split([m.dim, kv, kv], -1)
        q = rotate(rearrange(q, "b t (h d) -> b h t d", h=m.heads), table, pos)
        k = rotate(rearrange(k, "b t (h d) -> b h t d", h=m.kv_heads), table, pos)
        v = rearrange(v, "b t (h d) -> b h t d", h=m.kv_heads)
        kc[slots[:, None], :, pos] = k.transpose(1, 2)
        vc[slots[:, None], :, pos] = v.transpose(1, 2)
        keys = repeat(kc[slots, :, :span], "b h s d -> b (h g) s d", g=m.heads // m.kv_heads)
        vals = repeat(vc[slots, :, :span], "b h s d -> b (h g) s d", g=m.heads // m.kv_heads)
        mask = (torch.arange(span, device=x.device) <= pos[..., None]).unsqueeze(1)
        att = F.scaled_dot_product_attention(q, keys, vals, attn_mask=mask)
        x = x + self.o(rearrange(att, "b h t d -> b t (h d)"))
        g, u = self.gate_up(self.n2(x)).chunk(2, -1)
        return x + self.down(F.silu(g) * u)


class Decoder(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.embed = nn.Embedding(m.vocab, m.dim)
        self.layers = nn.ModuleList(Layer(m) for _ in range(m.layers))
        self.norm = nn.RMSNorm(m.dim, eps=1e-6)
        self.head = nn.Linear(m.dim, m.vocab, bias=False)

    def forward(self, ids, pos, slots, pool, table, span):
        x = self.embed(ids)
        for i, layer in enumerate(self.layers):
            x = layer(x, pos, slots, pool.k[i], pool.v[i], table, span)
        return self.head(self.norm(x[:, -1]))


def pick(logits, temperature, top_p, gen):
    prob = (logits.float() / temperature).softmax(-1)
    srt, idx = prob.sort(-1, descending=True)
    srt[srt.cumsum(-1) - srt > top_p] = 0
    return idx.gather(-1, torch.multinomial(srt, 1, generator=gen)).squeeze(-1)


class Server:
    def __init__(self, model, m, args, device, dtype):
        self.model, self.args, self.device = model, args, device
        self.pool = KVPool(m, args.slots, args.max_len, device, dtype)
        self.table = rope_table(m.head_dim, args.max_len, device)
        self.gen = torch.Generator(device).manual_seed(args.seed)
        self.waiting, self.prefilling, self.active, self.done = collections.deque(), [], [], []

    def admit(self):
        while self.waiting and self.pool.free:
            r = self.waiting.popleft()
            r.slot = self.pool.free.popleft()
            self.prefilling.append(r)

    def prefill_one(self):
        r = self.prefilling[0]
        chunk = r.prompt[r.filled:r.filled + self.args.chunk]
        pos = torch.arange(r.filled, r.filled + len(chunk), device=self.device)[None]
        slot = torch.tensor([r.slot], device=self.device)
        logits = self.model(chunk.to(self.device)[None], pos, slot, self.pool, self.table, r.filled + len(chunk))
        r.filled += len(chunk)
        if r.filled == len(r.prompt):
            r.out.append(int(pick(logits, 0.9, 0.95, self.gen)))
            self.active.append(self.prefilling.pop(0))

    def decode(self):
        last = torch.tensor([[r.out[-1]] for r in self.active], device=self.device)
        pos = torch.tensor([[r.filled] for r in self.active], device=self.device)
        slots = torch.tensor([r.slot for r in self.active], device=self.device)
        span = max(r.filled for r in self.active) + 1
        nxt = pick(self.model(last, pos, slots, self.pool, self.table, span), 0.9, 0.95, self.gen).tolist()
        still = []
        for r, tok in zip(self.active, nxt):
            r.out.append(tok)
            r.filled += 1
            if len(r.out) >= r.max_new or r.filled >= self.args.max_len - 1:
                self.pool.free.append(r.slot)
                self.done.append(r)
            else:
                still.append(r)
        self.active = still

    @torch.inference_mode()
    def run(self, requests):
        tick, todo = 0, collections.deque(sorted(requests, key=lambda r: r.arrive))
        while todo or self.waiting or self.prefilling or self.active:
            while todo and todo[0].arrive <= tick:
                self.waiting.append(todo.popleft())
            self.admit()
            if self.prefilling:
                self.prefill_one()
            if self.active:
                self.decode()
            tick += 1
            if tick % 100 == 0:
                print(f"tick {tick} active {len(self.active)} prefill {len(self.prefilling)} waiting {len(self.waiting)} done {len(self.done)}", flush=True)
        return tick


def traffic(n, vocab, max_len, spacing, seed):
    g = torch.Generator().manual_seed(seed)
    r = lambda lo, hi: int(torch.randint(lo, hi, (1,), generator=g))
    return [Request(i, r(0, spacing * n), torch.randint(vocab, (r(max_len // 20, max_len // 2),), generator=g),
                    r(max_len // 20, max_len // 4)) for i in range(n)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--requests", type=int, default=220)
    ap.add_argument("--slots", type=int, default=36)
    ap.add_argument("--max-len", type=int, default=1184)
    ap.add_argument("--chunk", type=int, default=320)
    ap.add_argument("--spacing", type=int, default=3)
    for name, value in (("layers", 22), ("dim", 1920), ("vocab", 48000), ("seed", 4)):
        ap.add_argument(f"--{name}", type=int, default=value)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    m, dtype = ModelArgs(dim=args.dim, layers=args.layers, ffn=int(args.dim * 2.7), vocab=args.vocab), torch.bfloat16
    with device:
        model = Decoder(m).to(dtype).eval()
    server = Server(model, m, args, device, dtype)
    t = time.time()
    ticks = server.run(traffic(args.requests, args.vocab, args.max_len, args.spacing, args.seed))
    made = sum(len(r.out) for r in server.done)
    print(f"{len(server.done)} requests, {made} tokens, {ticks} ticks, {made / (time.time() - t):.0f} tok/s")


if __name__ == "__main__":
    main()
