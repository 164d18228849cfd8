"""A selective state space language model in plain torch: chunked doubling scan, causal conv, length curriculum."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def scan_chunk(a, b):
    """Inclusive scan of h_t = a_t h_{t-1} + b_t along dim 1 by doubling."""
    step, n = 1, a.size(1)
    while step < n:
        b = torch.cat([b[:, :step], b[:, step:] + a[:, step:] * b[:, :-step]], 1)
        a = torch.cat([a[:, :step], a[:, step:] * a[:, :-step]], 1)
        step *= 2
    return a, b


def selective_scan(u, delta, A, B, C, chunk):
    """u, delta: (batch, time, inner); A: (inner, state); B, C: (batch, time, state)."""
    h = torch.zeros(u.size(0), 1, u.size(2), A.size(1), device=u.device)
    ys = []
    for s in range(0, u.size(1), chunk):
        d = delta[:, s:s + chunk].unsqueeze(-1)
        a = torch.exp(d * A)
        b = d * B[:, s:s + chunk].unsqueeze(2) * u[:, s:s + chunk].unsqueeze(-1)
        a, b = scan_chunk(a, b)
        hs = b + a * h
        ys.append((hs * C[:, s:s + chunk].unsqueeze(2)).sum(-1))
        h = hs[:, -1:]
    return torch.cat(ys, 1)


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        x32 = x.float()
        return (x32 * x32.pow(2).mean(-1, keepdim=True).add(1e-5).rsqrt()).to(x.dtype) * self.weight


class MambaBlock(nn.Module):
    def __init__(self, d, state, expand, conv, chunk):
        super().__init__()
        self.inner, self.state, self.rank, self.chunk = expand * d, state, max(d // 16, 1), chunk
        self.norm = RMSNorm(d)
        self.inp = nn.Linear(d, 2 * self.inner, bias=False)
        self.conv = nn.Conv1d(self.inner, self.inner, conv, groups=self.inner, padding=conv - 1)
        self.x_proj = nn.Linear(self.inner, self.rank + 2 * state, bias=False)
        self.dt = nn.Linear(self.rank, self.inner)
        self.A_log = nn.Parameter(torch.arange(1, state + 1).float().log().repeat(self.inner, 1))
        self.D = nn.Parameter(torch.ones(self.inner))
        self.out = nn.Linear(self.inner, d, bias=False)
        nn.init.constant_(self.dt.bias, -4.0)

    def forward(self, x):
        T = x.size(1)
        u, z = self.inp(self.norm(x)).chunk(2, -1)
        u = F.silu(self.conv(u.transpose(1, 2))[..., :T].transpose(1, 2))
        dt, B, C = self.x_proj(u).split([self.rank, self.state, self.state], -1)
        with torch.autocast("cuda", enabled=False):
            delta = F.softplus(self.dt(dt.float()))
            y = selective_scan(u.float(), delta, -self.A_log.exp(), B.float(), C.float(), self.chunk)
            y = y + self.D * u.float()
        return x + self.out(y.to(u.dtype) * F.silu(z))


class LM(nn.Module):
    def __init__(self, vocab, d, layers, state, chunk):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        nn.init.normal_(self.emb.weight, std=0.02)
        self.blocks = nn.ModuleList(MambaBlock(d, state, 2, 4, chunk) for _ in range(layers))
        self.norm, self.head = RMSNorm(d), nn.Linear(d, vocab, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, ids):
        x = self.emb(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.training else block(x)
        return self.head(self.norm(x))


def batch_of(n, length, vocab, device):
    """Copy task: the second half repeats the first one."""
    half = torch.randint(0, vocab, (n, length // 2 + 1), device=device)
    return torch.cat([half, half], 1)[:, :length + 1]


def main():
    p = argparse.ArgumentParser()
    for name, default in dict(vocab=32000, d=512, layers=8, state=16, chunk=64, tokens=8192, length=256).items():
        p.add_argument(f"--{name}", type=int, default=default)
    args = p.parse_args()
    torch.manual_seed(12)
    device = torch.device("cuda")
    model = LM(args.vocab, args.d, args.layers, args.state, args.chunk).to(device)
    no_decay = [q for n, q in model.named_parameters() if q.ndim < 2 or n.endswith("A_log")]
    ids = {id(q) for q in no_decay}
    decay = [q for q in model.parameters() if id(q) not in ids]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}], lr=6e-4, fused=True)
    for stage in range(3):
        length = args.length * 2 ** stage
        n = args.tokens // length
        for step in range(4):
            data = batch_of(n, length, args.vocab, device)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                logits = model(data[:, :-1])
            loss = F.cross_entropy(logits.float().flatten(0, 1), data[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad(set_to_none=True)
            print(f"length {length} step {step} loss {loss.item():.4f}")
        model.eval()
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
            data = batch_of(1, 2 * length - 7, args.vocab, device)
            val = F.cross_entropy(model(data[:, :-1]).float().flatten(0, 1), data[:, 1:].flatten())
        model.train()
        print(f"extrapolation to {2 * length - 7}: {val.item():.4f}")


if __name__ == "__main__":
    main()
