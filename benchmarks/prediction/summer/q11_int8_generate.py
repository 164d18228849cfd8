"""Batched generation with int8 weight-only linears, grouped-query attention and a static KV cache."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Int8Linear(nn.Module):
    """Per-output-channel symmetric int8 weights, dequantised on the fly."""

    def __init__(self, d_in, d_out, device, dtype, group_rows=4096):
        super().__init__()
        self.register_buffer("weight", torch.empty(d_out, d_in, dtype=torch.int8, device=device))
        self.register_buffer("scale", torch.empty(d_out, 1, dtype=dtype, device=device))
        for r in range(0, d_out, group_rows):  # quantise piece by piece
            w = torch.randn(min(group_rows, d_out - r), d_in, device=device) * d_in ** -0.5
            s = w.abs().amax(1, keepdim=True) / 127
            self.weight[r:r + group_rows] = (w / s).round().clamp(-127, 127).to(torch.int8)
            self.scale[r:r + group_rows] = s.to(dtype)

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype) * self.scale)


class RMSNorm(nn.Module):
    def __init__(self, dim, device, dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim, device=device, dtype=dtype), requires_grad=False)

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


class Layer(nn.Module):
    def __init__(self, cfg, device, dtype):
        super().__init__()
        self.h, self.kv, self.hd = cfg.heads, cfg.kv_heads, cfg.dim // cfg.heads
        kw = dict(device=device, dtype=dtype)
        self.n1, self.n2 = RMSNorm(cfg.dim, **kw), RMSNorm(cfg.dim, **kw)
        self.qkv = Int8Linear(cfg.dim, (self.h + 2 * self.kv) * self.hd, **kw)
        self.o = Int8Linear(cfg.dim, cfg.dim, **kw)
        self.gate_up = Int8Linear(cfg.dim, 2 * cfg.ff, **kw)
        self.down = Int8Linear(cfg.ff, cfg.dim, **kw)

    def forward(self, x, cache_k, cache_v, start, cos, sin):
        b, t, d = x.shape
        qkv = self.qkv(self.n1(x)).view(b, t, self.h + 2 * self.kv, self.hd).transpose(1, 2)
        q, k, v = qkv.split([self.h, self.kv, self.kv], dim=1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        cache_k[:, :, start:start + t] = k
        cache_v[:, :, start:start + t] = v
        rep = self.h // self.kv
        keys = cache_k[:, :, :start + t].repeat_interleave(rep, dim=1)
        vals = cache_v[:, :, :start + t].repeat_interleave(rep, dim=1)
        att = F.scaled_dot_product_attention(q, keys, vals, is_causal=t > 1)
        x = x + self.o(att.transpose(1, 2).reshape(b, t, d))
        gate, up = self.gate_up(self.n2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class Decoder(nn.Module):
    def __init__(self, cfg, device, dtype):
        super().__init__()
        self.cfg = cfg
        self.embed = nn.Embedding(cfg.vocab, cfg.dim, device=device, dtype=dtype).requires_grad_(False)
        self.layers = nn.ModuleList([Layer(cfg, device, dtype) for _ in range(cfg.layers)])
        self.norm = RMSNorm(cfg.dim, device, dtype)
        self.head = Int8Linear(cfg.dim, cfg.vocab, device, dtype)
        hd = cfg.dim // cfg.heads
        ang = torch.outer(torch.arange(cfg.prompt + cfg.new, device=device).float(),
                          1e4 ** (-torch.arange(0, hd, 2, device=device).float() / hd))
        self.cos, self.sin = ang.cos().to(dtype), ang.sin().to(dtype)

    def forward(self, ids, cache, start):
        x = self.embed(ids)
        cos, sin = self.cos[start:start + ids.shape[1]], self.sin[start:start + ids.shape[1]]
        for layer, (k, v) in zip(self.layers, cache):
            x = layer(x, k, v, start, cos, sin)
        return self.head(self.norm(x))


def sample_top_p(logits, temperature, top_p):
    probs = (logits.float() / temperature).softmax(-1)
    sp, si = probs.sort(dim=-1, descending=True)
    sp[sp.cumsum(-1) - sp > top_p] = 0
    return si.gather(-1, torch.multinomial(sp / sp.sum(-1, keepdim=True), 1))


@torch.inference_mode()
def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=4096)
    p.add_argument("--layers", type=int, default=32)
    p.add_argument("--heads", type=int, default=32)
    p.add_argument("--kv-heads", type=int, default=8)
    p.add_argument("--ff", type=int, default=14336)
    p.add_argument("--vocab", type=int, default=32768)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--prompt", type=int, default=1024)
    p.add_argument("--new", type=int, default=40)
    p.add_argument("--temperature", type=float, default=0.8)
    p.add_argument("--top-p", type=float, default=0.9)
    cfg = p.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16
    model = Decoder(cfg, device, dtype)
    shape = (cfg.batch, cfg.kv_heads, cfg.prompt + cfg.new, cfg.dim // cfg.heads)
    cache = [(torch.zeros(shape, device=device, dtype=dtype), torch.zeros(shape, device=device, dtype=dtype))
             for _ in range(cfg.layers)]

    prompt = torch.randint(0, cfg.vocab, (cfg.batch, cfg.prompt), device=device)
    t0 = time.time()
    logits = model(prompt, cache, 0)
    # score the prompt, then continue it
    nll = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), prompt[:, 1:].flatten())
    print(f"prefill {time.time() - t0:.2f}s, prompt nll {nll.item():.3f}")

    tok = sample_top_p(logits[:, -1], cfg.temperature, cfg.top_p)
    out = [tok]
    for i in range(cfg.new - 1):
        logits = model(tok, cache, cfg.prompt + i)
        tok = sample_top_p(logits[:, -1], cfg.temperature, cfg.top_p)
        out.append(tok)
    text = torch.cat(out, dim=1)
    print(f"generated {tuple(text.shape)} in {time.time() - t0:.2f}s, first row {text[0, :8].tolist()}")


if __name__ == "__main__":
    main()
