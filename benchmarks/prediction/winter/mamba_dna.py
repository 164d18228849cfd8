"""Tiny Mamba on DNA: selective scan as a plain loop over time, masked-base prediction."""
import argparse
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F


class SelectiveSSM(nn.Module):
    def __init__(self, dim, expand=2, state=16, conv=4):
        super().__init__()
        self.inner, self.state = dim * expand, state
        self.rank = math.ceil(dim / 16)
        self.in_proj = nn.Linear(dim, 2 * self.inner, bias=False)
        self.conv = nn.Conv1d(self.inner, self.inner, conv, groups=self.inner, padding=conv - 1)
        self.x_proj = nn.Linear(self.inner, self.rank + 2 * state, bias=False)
        self.dt_proj = nn.Linear(self.rank, self.inner)
        self.A_log = nn.Parameter(torch.arange(1, state + 1).float().repeat(self.inner, 1).log())
        self.D = nn.Parameter(torch.ones(self.inner))
        self.out_proj = nn.Linear(self.inner, dim, bias=False)
        with torch.no_grad():
            dt = torch.exp(torch.rand(self.inner) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
            self.dt_proj.bias.copy_(dt + torch.log(-torch.expm1(-dt)))

    def forward(self, x):
        L = x.shape[1]
        u, z = self.in_proj(x).chunk(2, -1)
        u = F.silu(self.conv(u.transpose(1, 2))[..., :L].transpose(1, 2))
        dt, B, C = self.x_proj(u).split([self.rank, self.state, self.state], -1)
        dt = F.softplus(self.dt_proj(dt))
        y = self.scan(u, dt, -self.A_log.exp(), B, C)
        return self.out_proj((y + u * self.D) * F.silu(z))

    def scan(self, u, dt, A, B, C):
        dA = torch.exp(dt.unsqueeze(-1) * A)                          # b l d n
        dBu = (dt * u).unsqueeze(-1) * B.unsqueeze(2)
        h = u.new_zeros(u.shape[0], self.inner, self.state)
        ys = []
        for a, b, c in zip(dA.unbind(1), dBu.unbind(1), C.unbind(1)):
            h = a * h + b
            ys.append((h @ c.unsqueeze(-1)).squeeze(-1))
        return torch.stack(ys, 1)


class BiMamba(nn.Module):
    """Forward and reverse-complement direction with shared weights, as in Caduceus."""

    def __init__(self, dim):
        super().__init__()
        self.norm = nn.RMSNorm(dim)
        self.ssm = SelectiveSSM(dim)

    def forward(self, x):
        y = self.norm(x)
        return x + self.ssm(y) + self.ssm(y.flip(1)).flip(1)


class DNAModel(nn.Module):
    def __init__(self, dim, layers, vocab=6):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(BiMamba(dim) for _ in range(layers))
        self.norm = nn.RMSNorm(dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def genome(n, seed):
    """Repeats with mutations."""
    g = torch.Generator().manual_seed(seed)
    motif = torch.randint(0, 4, (64, 40), generator=g)
    seq = motif[torch.randint(0, 64, (n // 40 + 1,), generator=g)].flatten()[:n]
    mut = torch.rand(n, generator=g) < 0.05
    return torch.where(mut, torch.randint(0, 4, (n,), generator=g), seq)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=int(os.environ.get("STEPS", "20")))
    ap.add_argument("--length", type=int, default=384)
    ap.add_argument("--batch", type=int, default=6)
    args = ap.parse_args()
    length = max(16, int(args.length * float(os.environ.get("SCALE", "1"))))
    torch.manual_seed(11)
    dna = genome(1_000_000, 3).to("cuda")
    model = DNAModel(256, 3).to("cuda")
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    g = torch.Generator().manual_seed(4)
    for step in range(args.steps):
        start = torch.randint(0, len(dna) - length, (args.batch,), generator=g).to("cuda")
        ids = dna[start[:, None] + torch.arange(length, device="cuda")]
        masked = torch.rand(ids.shape, device="cuda") < 0.15
        logits = model(ids.masked_fill(masked, 5))
        loss = F.cross_entropy(logits[masked], ids[masked])
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 3 == 0:
            acc = (logits[masked].argmax(-1) == ids[masked]).float().mean().item()
            print(f"step {step:3d} loss {loss.item():.4f} acc {acc:.3f} peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")
    with torch.no_grad():                                        # a longer context than in training
        ids = dna[None, :3 * length]
        print(f"long context nll {F.cross_entropy(model(ids)[0], ids[0]).item():.4f}")


if __name__ == "__main__":
    main()
