"""A decoder with switch layers (top-2 of 8 experts, fixed capacity), trained by Muon for matrices and AdamW for the rest."""
import argparse
import math
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))

    def forward(self, x, cos, sin):
        b, n, d = x.shape
        q, k, v = (m(x).view(b, n, self.heads, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(b, n, d))


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)


class FeedForward(nn.Module):
    def __init__(self, d, hidden):
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(d, hidden, bias=False), nn.Linear(d, hidden, bias=False), nn.Linear(hidden, d, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class SparseFeedForward(nn.Module):
    """Every expert takes at most `capacity` tokens; those that find no seat pass by."""

    def __init__(self, d, hidden, experts, top_k=2, factor=1.25):
        super().__init__()
        self.experts = nn.ModuleList(FeedForward(d, hidden) for _ in range(experts))
        self.router = nn.Linear(d, experts, bias=False)
        self.top_k, self.factor = top_k, factor

    def forward(self, x):
        shape, e = x.shape, len(self.experts)
        x = x.reshape(-1, shape[-1])
        with torch.autocast(x.device.type, enabled=False):
            probs = F.linear(x.float(), self.router.weight).softmax(-1)
        weight, choice = probs.topk(self.top_k, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        gates = torch.zeros_like(probs).scatter(1, choice, weight)
        capacity = min(len(x), math.ceil(self.factor * self.top_k * len(x) / e))
        seat, who = gates.topk(capacity, dim=0)                        # each expert's own heaviest tokens
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            y = expert(x[who[:, i]]) * seat[:, i, None]
            out = out.index_add(0, who[:, i], y.to(out.dtype))
        load = (gates > 0).float().mean(0)
        balance = e * (load * probs.mean(0)).sum()
        return out.view(shape), balance


class Layer(nn.Module):
    def __init__(self, d, heads, hidden, experts):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.attn = Attention(d, heads)
        self.ff = SparseFeedForward(d, hidden, experts) if experts else FeedForward(d, hidden * 2)

    def forward(self, x, cos, sin):
        x = x + self.attn(self.n1(x), cos, sin)
        y = self.ff(self.n2(x))
        y, aux = y if isinstance(y, tuple) else (y, x.new_zeros(()))
        return x + y, aux


class MoELM(nn.Module):
    def __init__(self, vocab, d, heads, hidden, layers, experts):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList(Layer(d, heads, hidden, experts if i % 2 else 0) for i in range(layers))
        self.norm, self.head = nn.RMSNorm(d), nn.Linear(d, vocab, bias=False)
        self.half = d // heads // 2
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, ids, labels):
        pos = torch.arange(ids.shape[1], device=ids.device)[:, None]
        angle = pos * 10000 ** (-torch.arange(self.half, device=ids.device) / self.half)
        cos, sin = angle.cos(), angle.sin()
        x, aux = self.embed(ids), 0.0
        for layer in self.layers:
            x, a = layer(x, cos, sin)
            aux = aux + a
        logits = self.head(self.norm(x))
        ce = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
        return ce, aux / len(self.layers)


def batches(vocab, batch, lengths, seed, device):
    g = torch.Generator().manual_seed(seed)
    i = 0
    while True:
        n = lengths[i % len(lengths)]
        start = torch.randint(0, vocab, (batch, 1), generator=g)
        stride = torch.randint(1, 17, (batch, 1), generator=g)
        ids = (start + stride * torch.arange(n + 1)) % vocab
        yield ids[:, :-1].to(device), ids[:, 1:].to(device)
        i += 1


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=18000)
    p.add_argument("--dim", type=int, default=640)
    p.add_argument("--heads", type=int, default=10)
    p.add_argument("--hidden", type=int, default=1152)
    p.add_argument("--layers", type=int, default=8)
    p.add_argument("--experts", type=int, default=8)
    p.add_argument("--batch", type=int, default=7)
    p.add_argument("--lengths", type=int, nargs="+", default=[512, 800, 640])
    p.add_argument("--accumulate", type=int, default=2)
    p.add_argument("--steps", type=int, default=24)
    args = p.parse_args()
    device = "cuda"
    torch.manual_seed(3)

    model = MoELM(args.vocab, args.dim, args.heads, args.hidden, args.layers, args.experts).to(device)
    matrices = [q for n, q in model.named_parameters() if q.ndim == 2 and n.startswith("layers") and "router" not in n]
    chosen = {id(q) for q in matrices}
    others = [q for q in model.parameters() if id(q) not in chosen]
    print(f"muon {sum(q.numel() for q in matrices) / 1e6:.1f}M, adamw {sum(q.numel() for q in others) / 1e6:.1f}M")
    optimizers = [torch.optim.Muon(matrices, lr=0.02, weight_decay=0.01, momentum=0.95),
                  torch.optim.AdamW(others, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)]

    def wsd(step):
        return min(1.0, (step + 1) / 4, max(0.05, (args.steps - step) / (0.3 * args.steps)))
    schedulers = [torch.optim.lr_scheduler.LambdaLR(o, wsd) for o in optimizers]

    stream = batches(args.vocab, args.batch, args.lengths, 11, device)
    for step in range(args.steps):
        total = 0.0
        for _ in range(args.accumulate):
            ids, labels = next(stream)
            with torch.autocast(device, dtype=torch.bfloat16):
                ce, aux = model(ids, labels)
            ((ce + 0.01 * aux) / args.accumulate).backward()
            total += ce.item() / args.accumulate
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for o, s in zip(optimizers, schedulers):
            o.step()
            s.step()
            o.zero_grad(set_to_none=True)
        if step % 4 == 0:
            print(f"step {step} loss {total:.4f} aux {float(aux):.4f}")

    model.eval()
    held = batches(args.vocab, args.batch * 2, [384, 500], 12, device)
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        losses = [model(*next(held))[0].item() for _ in range(4)]
    print(f"held-out perplexity {math.exp(min(sum(losses) / 4, 30)):.2f}")
    with tempfile.TemporaryDirectory() as folder:
        torch.save({"model": model.state_dict(), "opt": [o.state_dict() for o in optimizers]}, os.path.join(folder, "moe.pt"))


if __name__ == "__main__":
    main()
