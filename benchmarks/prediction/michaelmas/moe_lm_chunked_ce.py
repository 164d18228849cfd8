"""Sparse mixture-of-experts LM: top-2 routing with ragged gathers, grad accumulation, chunked cross entropy Function."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

class ChunkedCE(torch.autograd.Function):
    """Never keeps the full logits: the gradients are made chunk by chunk in the forward pass."""

    @staticmethod
    def forward(ctx, hidden, weight, target, chunk):
        loss = hidden.new_zeros((), dtype=torch.float32)
        gh = torch.empty_like(hidden)
        gw = torch.zeros_like(weight, dtype=torch.float32)
        n = target.numel()
        for h, t, g in zip(hidden.split(chunk), target.split(chunk), gh.split(chunk)):
            logits = (h @ weight.to(h.dtype).t()).float()
            lse = logits.logsumexp(-1, keepdim=True)
            loss += (lse.squeeze(1) - logits.gather(1, t[:, None]).squeeze(1)).sum()
            p = (logits - lse).exp_()
            p.scatter_add_(1, t[:, None], torch.full_like(lse, -1.0))
            p = (p / n).to(h.dtype)
            g.copy_(p @ weight.to(h.dtype))
            gw += (p.t() @ h).float()
        ctx.save_for_backward(gh, gw.to(weight.dtype))
        return loss / n

    @staticmethod
    def backward(ctx, grad):
        gh, gw = ctx.saved_tensors
        return gh * grad.to(gh.dtype), gw * grad.to(gw.dtype), None, None

class MoE(nn.Module):
    def __init__(self, dim, experts, hidden):
        super().__init__()
        self.router = nn.Linear(dim, experts, bias=False)
        self.w_in = nn.Parameter(torch.randn(experts, dim, 2 * hidden) / math.sqrt(dim))
        self.w_out = nn.Parameter(torch.randn(experts, hidden, dim) / math.sqrt(hidden))

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        probs = self.router(flat).float().softmax(-1)
        top_p, top_i = probs.topk(2, -1)
        top_p = top_p / top_p.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        for e in range(self.w_in.shape[0]):
            tok, slot = (top_i == e).nonzero(as_tuple=True)
            if tok.numel() == 0:
                continue
            a, b = (flat[tok] @ self.w_in[e]).chunk(2, -1)
            y = (F.silu(a) * b) @ self.w_out[e]
            out.index_add_(0, tok, (y * top_p[tok, slot, None]).to(out.dtype))
        load = F.one_hot(top_i[:, 0], probs.shape[-1]).float().mean(0)
        return out.view_as(x), (load * probs.mean(0)).sum() * probs.shape[-1]

class Layer(nn.Module):
    def __init__(self, dim, heads, experts, hidden):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.moe = MoE(dim, experts, hidden)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        y, aux = self.moe(self.n2(x))
        return x + y, aux

class LM(nn.Module):
    def __init__(self, vocab, dim, depth, heads, experts, hidden):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        nn.init.normal_(self.emb.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(dim, heads, experts, hidden) for _ in range(depth))
        self.norm = nn.RMSNorm(dim)

    def forward(self, ids, labels, chunk=2048):
        x, aux = self.emb(ids), 0.0
        for layer in self.layers:
            x, a = layer(x)
            aux = aux + a
        x = self.norm(x).flatten(0, 1).to(torch.bfloat16)
        return ChunkedCE.apply(x, self.emb.weight, labels.flatten(), chunk), aux / len(self.layers)

def main():
    ap = argparse.ArgumentParser()
    for name, val in dict(vocab=50257, dim=768, depth=8, heads=12, experts=8, hidden=1024, batch=6, seq=1024, accum=3,
                          steps=5).items():
        ap.add_argument(f"--{name}", type=int, default=val)
    a = ap.parse_args()
    torch.manual_seed(11)
    model = LM(a.vocab, a.dim, a.depth, a.heads, a.experts, a.hidden).to("cuda")
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, betas=(0.9, 0.95))
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 3))
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters")
    for step in range(a.steps):
        total = 0.0
        for _ in range(a.accum):
            ids = torch.randint(a.vocab, (a.batch, a.seq + 1), device="cuda")
            with torch.autocast("cuda", dtype=torch.bfloat16):
                ce, aux = model(ids[:, :-1], ids[:, 1:])
            ((ce + 0.01 * aux) / a.accum).backward()
            total += ce.item() / a.accum
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        sched.step()
        print(f"step {step} ce {total:.4f} aux {aux.item():.3f} norm {norm.item():.2f}")

if __name__ == "__main__":
    main()
