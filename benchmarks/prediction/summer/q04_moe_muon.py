"""Mixture-of-experts LM, top-2 routing with index_select / index_add, Muon + AdamW optimisers."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class DenseFFN(nn.Module):
    def __init__(self, dim, ff):
        super().__init__()
        self.fc1 = nn.Linear(dim, ff, bias=False)
        self.fc2 = nn.Linear(ff, dim, bias=False)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)).square()), x.new_zeros(())


class MoEFFN(nn.Module):
    def __init__(self, dim, ff, experts, top_k):
        super().__init__()
        self.top_k, self.experts = top_k, experts
        self.router = nn.Linear(dim, experts, bias=False)
        self.w1 = nn.Parameter(torch.randn(experts, dim, ff) * dim ** -0.5)
        self.w2 = nn.Parameter(torch.randn(experts, ff, dim) * ff ** -0.5)

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        probs = self.router(x).float().softmax(-1)
        gate, idx = probs.topk(self.top_k, dim=-1)
        gate = gate / gate.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        load = []
        for e in range(self.experts):
            token, slot = (idx == e).nonzero(as_tuple=True)
            load.append(token.numel() / idx.numel())
            if token.numel() == 0:
                continue
            h = x.index_select(0, token)
            h = F.gelu(h @ self.w1[e]) @ self.w2[e]
            out.index_add_(0, token, (h * gate[token, slot].unsqueeze(-1)).to(out.dtype))
        load = torch.tensor(load, device=x.device)
        aux = self.experts * (probs.mean(0) * load).sum()
        return out.view(shape), aux


class Block(nn.Module):
    def __init__(self, args, moe):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(args.dim), nn.LayerNorm(args.dim)
        self.attn = Attention(args.dim, args.heads)
        self.ffn = MoEFFN(args.dim, args.ff, args.experts, 2) if moe else DenseFFN(args.dim, 4 * args.dim)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        y, aux = self.ffn(self.n2(x))
        return x + y, aux


class MoELM(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.tok = nn.Embedding(args.vocab, args.dim)
        self.pos = nn.Embedding(args.seq, args.dim)
        self.blocks = nn.ModuleList([Block(args, i % 2 == 1) for i in range(args.layers)])
        self.norm = nn.LayerNorm(args.dim)
        self.head = nn.Linear(args.dim, args.vocab, bias=False)
        self.head.weight = self.tok.weight
        nn.init.normal_(self.tok.weight, std=0.02)

    def forward(self, ids, targets):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        aux_total = 0.0
        for blk in self.blocks:
            x, aux = blk(x)
            aux_total = aux_total + aux
        logits = self.head(self.norm(x))
        ce = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))
        return ce, aux_total


def newton_schulz(g, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16()
    transposed = x.shape[-2] > x.shape[-1]
    if transposed:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        A = x @ x.mT
        x = a * x + (b * A + c * A @ A) @ x
    return x.mT if transposed else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "buf" not in state:
                    state["buf"] = torch.zeros_like(p.grad)
                buf = state["buf"]
                buf.lerp_(p.grad, 1 - group["momentum"])
                update = newton_schulz(p.grad.lerp(buf, group["momentum"]))
                scale = max(1, p.shape[-2] / p.shape[-1]) ** 0.5
                p.add_(update.to(p.dtype), alpha=-group["lr"] * scale)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--vocab", type=int, default=32000)
    ap.add_argument("--dim", type=int, default=1024)
    ap.add_argument("--heads", type=int, default=16)
    ap.add_argument("--layers", type=int, default=12)
    ap.add_argument("--experts", type=int, default=16)
    ap.add_argument("--ff", type=int, default=2048)
    ap.add_argument("--batch", type=int, default=10)
    ap.add_argument("--seq", type=int, default=1024)
    ap.add_argument("--steps", type=int, default=6)
    args = ap.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = MoELM(args)
    matrices = [p for n, p in model.named_parameters() if p.ndim >= 2 and "tok" not in n and "pos" not in n]
    rest = [p for n, p in model.named_parameters() if p.ndim < 2 or "tok" in n or "pos" in n]
    opts = [Muon(matrices, lr=0.02), torch.optim.AdamW(rest, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.01)]
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters")

    for step in range(args.steps):
        data = torch.randint(args.vocab, (args.batch, args.seq + 1), device=device)
        with torch.autocast(device, dtype=torch.bfloat16):
            ce, aux = model(data[:, :-1], data[:, 1:])
        (ce + 0.01 * aux).backward()
        for o in opts:
            o.step()
        model.zero_grad(set_to_none=True)
        print(f"step {step}  ce {ce.item():.3f}  balance {aux.item():.3f}")


if __name__ == "__main__":
    main()
