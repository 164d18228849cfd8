"""Mixture-of-experts language model with top-2 routing, capacity drop and a hand-written Adafactor."""
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda"


@dataclass
class Config:
    vocab: int = 32768
    dim: int = 1024
    hidden: int = 3584
    layers: int = 8
    heads: int = 16
    experts: int = 16
    topk: int = 2
    capacity: float = 1.5
    seq: int = 1024
    batch: int = 16
    steps: int = 40
    lr: float = 1e-3
    aux: float = 0.01


class Expert(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.up = nn.Linear(c.dim, c.hidden, bias=False)
        self.down = nn.Linear(c.hidden, c.dim, bias=False)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class MoE(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.router = nn.Linear(c.dim, c.experts, bias=False)
        self.experts = nn.ModuleList([Expert(c) for _ in range(c.experts)])

    def forward(self, x):
        c = self.c
        shape = x.shape
        x = x.reshape(-1, c.dim)
        if self.training:
            noisy = x * (1 + 0.02 * (torch.rand_like(x) - 0.5))
        else:
            noisy = x
        with torch.autocast("cuda", enabled=False):
            prob = F.linear(noisy.float(), self.router.weight).softmax(-1)
        weight, chosen = prob.topk(c.topk, dim=-1)
        weight = weight / weight.sum(-1, keepdim=True)
        limit = int(c.capacity * x.shape[0] * c.topk / c.experts)
        out = torch.zeros(x.shape, device=x.device)
        load = []
        for e, expert in enumerate(self.experts):
            token, slot = (chosen == e).nonzero(as_tuple=True)
            load.append(token.numel())
            if token.numel() > limit:
                keep = weight[token, slot].topk(limit).indices
                token, slot = token[keep], slot[keep]
            if token.numel() == 0:
                continue
            y = expert(x[token])
            out = out.index_add(0, token, y.float() * weight[token, slot, None])
        frac = torch.tensor(load, device=x.device, dtype=torch.float32) / (x.shape[0] * c.topk)
        aux = c.experts * (frac * prob.mean(0)).sum()
        return out.view(shape), aux


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = c.heads
        self.norm1, self.norm2 = nn.LayerNorm(c.dim), nn.LayerNorm(c.dim)
        self.qkv, self.proj = nn.Linear(c.dim, 3 * c.dim), nn.Linear(c.dim, c.dim)
        self.moe = MoE(c)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.norm1(x)).chunk(3, -1))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(h.transpose(1, 2).reshape(b, t, d))
        y, aux = self.moe(self.norm2(x))
        return x + y, aux


class MoELM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tok, self.pos = nn.Embedding(c.vocab, c.dim), nn.Embedding(c.seq, c.dim)
        self.blocks = nn.ModuleList([Block(c) for _ in range(c.layers)])
        self.norm = nn.LayerNorm(c.dim)
        self.head = nn.Linear(c.dim, c.vocab, bias=False)
        self.head.weight = self.tok.weight
        nn.init.normal_(self.tok.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.tok(tokens) + self.pos(torch.arange(tokens.shape[1], device=tokens.device))
        total = 0.0
        for block in self.blocks:
            x, aux = block(x)
            total = total + aux
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()), total / len(self.blocks)


class Adafactor(torch.optim.Optimizer):
    """Factored second moments, no first moment, update clipping."""

    def __init__(self, params, lr, eps=1e-30, clip=1.0, decay=0.8):
        super().__init__(params, dict(lr=lr, eps=eps, clip=clip, decay=decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    if p.ndim == 2:
                        state["row"] = p.new_zeros(p.shape[0])
                        state["col"] = p.new_zeros(p.shape[1])
                    else:
                        state["v"] = torch.zeros_like(p)
                state["step"] += 1
                beta = 1 - state["step"] ** -group["decay"]
                sq = p.grad.square().add_(group["eps"])
                if p.ndim == 2:
                    state["row"].lerp_(sq.mean(1), 1 - beta)
                    state["col"].lerp_(sq.mean(0), 1 - beta)
                    r = (state["row"] / state["row"].mean()).rsqrt_()
                    update = p.grad * r[:, None] * state["col"].rsqrt()[None]
                else:
                    state["v"].lerp_(sq, 1 - beta)
                    update = p.grad * state["v"].rsqrt()
                update.div_((update.norm() / update.numel() ** 0.5 / group["clip"]).clamp_(min=1.0))
                p.add_(update, alpha=-group["lr"])


def sample_tokens(c, g):
    """Sequences that walk through the vocabulary with one of 64 strides, with some noise."""
    start = torch.randint(c.vocab, (c.batch, 1), device=device, generator=g)
    stride = torch.randint(1, 65, (c.batch, 1), device=device, generator=g)
    seq = (start + stride * torch.arange(c.seq + 1, device=device)) % c.vocab
    noise = torch.rand(seq.shape, device=device, generator=g) < 0.1
    return torch.where(noise, torch.randint(c.vocab, seq.shape, device=device, generator=g), seq)


def main(c=Config()):
    torch.manual_seed(0)
    with torch.device(device):
        model = MoELM(c)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters")
    optimizer = Adafactor(model.parameters(), c.lr)
    g = torch.Generator(device=device).manual_seed(5)
    start = time.time()
    for step in range(c.steps):
        seq = sample_tokens(c, g)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss, aux = model(seq[:, :-1], seq[:, 1:])
            total = loss + c.aux * aux
        total.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f} aux {aux.item():.3f} {time.time() - start:.1f}s")
    model.eval()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        seq = sample_tokens(c, g)
        loss, _ = model(seq[:, :-1], seq[:, 1:])
    print(f"eval {loss.item():.4f} {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
