"""Selective state-space language model (Mamba style) with the scan written in plain torch.

The recurrence h_t = a_t * h_{t-1} + u_t is solved chunk by chunk with a doubling
(Hillis-Steele) scan inside each chunk.  Trained with a hand-written Lion.
"""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def doubling_scan(a, u):
    """Inclusive scan over dim 1 of the pairs (a, u)."""
    n, shift = a.shape[1], 1
    while shift < n:
        u_prev = F.pad(u[:, :-shift], (0, 0, 0, 0, shift, 0))
        a_prev = F.pad(a[:, :-shift], (0, 0, 0, 0, shift, 0), value=1.0)
        u = u + a * u_prev
        a = a * a_prev
        shift *= 2
    return a, u


def selective_scan(x, dt, A, B, C, D, chunk):
    # x, dt: (b, l, d)   A: (d, n)   B, C: (b, l, n)
    b, l, d = x.shape
    state = x.new_zeros(b, d, A.shape[1])
    outs = []
    for s in range(0, l, chunk):
        xs, dts = x[:, s:s + chunk], dt[:, s:s + chunk]
        a = torch.exp(dts.unsqueeze(-1) * A)
        u = (dts * xs).unsqueeze(-1) * B[:, s:s + chunk].unsqueeze(2)
        a_cum, u_cum = doubling_scan(a, u)
        h = a_cum * state.unsqueeze(1) + u_cum
        state = h[:, -1]
        outs.append(torch.einsum("bldn,bln->bld", h, C[:, s:s + chunk]))
    return torch.cat(outs, dim=1) + x * D


class SSMBlock(nn.Module):
    def __init__(self, dim, expand, state, conv, chunk):
        super().__init__()
        inner = dim * expand
        self.rank = max(1, dim // 16)
        self.state, self.chunk = state, chunk
        self.norm = nn.LayerNorm(dim)
        self.in_proj = nn.Linear(dim, 2 * inner, bias=False)
        self.conv = nn.Conv1d(inner, inner, conv, groups=inner, padding=conv - 1)
        self.x_proj = nn.Linear(inner, self.rank + 2 * state, bias=False)
        self.dt_proj = nn.Linear(self.rank, inner)
        nn.init.constant_(self.dt_proj.bias, -4.0)
        self.A_log = nn.Parameter(torch.log(torch.arange(1, state + 1).float()).repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, dim, bias=False)

    def forward(self, x):
        l = x.shape[1]
        h, z = self.in_proj(self.norm(x)).chunk(2, dim=-1)
        h = self.conv(h.transpose(1, 2))[..., :l].transpose(1, 2)
        h = F.silu(h)
        dt, B, C = self.x_proj(h).split([self.rank, self.state, self.state], dim=-1)
        dt = F.softplus(self.dt_proj(dt).float())
        A = -torch.exp(self.A_log)
        with torch.autocast(x.device.type, enabled=False):
            y = selective_scan(h.float(), dt, A, B.float(), C.float(), self.D, self.chunk)
        return x + self.out_proj(y * F.silu(z))


class SSMLM(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.Embedding(args.vocab, args.dim)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.blocks = nn.ModuleList(
            [SSMBlock(args.dim, args.expand, args.state, 4, args.chunk) for _ in range(args.layers)])
        self.norm = nn.LayerNorm(args.dim)

    def forward(self, ids):
        x = self.embed(ids)
        for blk in self.blocks:
            x = checkpoint(blk, x, use_reentrant=False) if torch.is_grad_enabled() else blk(x)
        return F.linear(self.norm(x), self.embed.weight)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.1):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["m"] = torch.zeros_like(p)
                update = (st["m"] * b1 + p.grad * (1 - b1)).sign_()
                p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"])
                st["m"].mul_(b2).add_(p.grad, alpha=1 - b2)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=16384)
    p.add_argument("--dim", type=int, default=512)
    p.add_argument("--expand", type=int, default=2)
    p.add_argument("--state", type=int, default=16)
    p.add_argument("--layers", type=int, default=12)
    p.add_argument("--chunk", type=int, default=64)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--seq", type=int, default=2048)
    p.add_argument("--steps", type=int, default=5)
    args = p.parse_args()

    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = SSMLM(args).to(device)
    opt = Lion(model.parameters(), lr=1e-4)
    for step in range(args.steps):
        ids = torch.randint(0, args.vocab, (args.batch, args.seq + 1), device=device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        for blk in model.blocks:  # clip layer by layer
            nn.utils.clip_grad_norm_(blk.parameters(), 0.5)
        opt.step()
        opt.zero_grad()
        print(f"step {step} loss {loss.item():.4f}")

    with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16):
        ids = torch.randint(0, args.vocab, (args.batch, args.seq + 1), device=device)
        val = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    print(f"validation loss {val.item():.4f}")


if __name__ == "__main__":
    main()
