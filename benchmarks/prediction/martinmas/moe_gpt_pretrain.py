"""Pre-train a small top-2 mixture-of-experts GPT on synthetic token streams."""
import argparse
import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
class ChunkedCrossEntropy(torch.autograd.Function):
    """Projects to the vocabulary chunk by chunk and never keeps the full logits."""
    @staticmethod
    def forward(ctx, hidden, weight, target, chunk):
        grad_h = torch.empty_like(hidden)
        grad_w = torch.zeros_like(weight, dtype=torch.float32)
        total = hidden.new_zeros((), dtype=torch.float32)
        n = target.numel()
        wb = weight.to(hidden.dtype)
        for s in range(0, n, chunk):
            h = hidden[s:s + chunk]
            t = target[s:s + chunk]
            logits = (h @ wb.t()).float()
            lse = torch.logsumexp(logits, dim=-1)
            total += (lse - logits.gather(1, t[:, None]).squeeze(1)).sum()
            p = torch.exp(logits - lse[:, None])
            p.scatter_add_(1, t[:, None], torch.full_like(lse, -1.0)[:, None])
            p = p.mul_(1.0 / n).to(hidden.dtype)
            grad_h[s:s + chunk] = p @ wb
            grad_w += (p.t() @ h).float()
        ctx.save_for_backward(grad_h, grad_w)
        return total / n
    @staticmethod
    def backward(ctx, g):
        grad_h, grad_w = ctx.saved_tensors
        return grad_h * g.to(grad_h.dtype), grad_w * g, None, None
class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))
class MoE(nn.Module):
    def __init__(self, dim, hidden, n_experts, k=2):
        super().__init__()
        self.k = k
        self.gate = nn.Linear(dim, n_experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim)) for _ in range(n_experts))
    def forward(self, x):
        flat = x.reshape(-1, x.size(-1))
        probs = self.gate(flat).float().softmax(-1)
        w, idx = probs.topk(self.k, dim=-1)
        w = w / w.sum(-1, keepdim=True)
        out = torch.zeros_like(flat, dtype=torch.float32)
        for e, expert in enumerate(self.experts):
            tok, slot = torch.where(idx == e)
            if tok.numel() == 0:
                continue
            y = expert(flat[tok])
            out.index_add_(0, tok, y.float() * w[tok, slot, None])
        load = F.one_hot(idx[:, 0], probs.size(-1)).float().mean(0)
        aux = probs.size(-1) * (load * probs.mean(0)).sum()
        return out.view_as(x), aux
class Block(nn.Module):
    def __init__(self, dim, heads, hidden, n_experts):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.moe = MoE(dim, hidden, n_experts)
    def forward(self, x):
        x = x + self.attn(self.n1(x))
        y, aux = self.moe(self.n2(x))
        return x + y, aux
class MoEGPT(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.tok = nn.Embedding(a.vocab, a.dim)
        self.pos = nn.Parameter(torch.randn(a.seq, a.dim) * 0.02)
        self.blocks = nn.ModuleList(Block(a.dim, a.heads, a.hidden, a.experts) for _ in range(a.layers))
        self.norm = nn.LayerNorm(a.dim)
        nn.init.normal_(self.tok.weight, std=0.02)
    def forward(self, ids, target, chunk):
        x = self.tok(ids) + self.pos[: ids.size(1)]
        aux_total = 0.0
        for i, blk in enumerate(self.blocks):
            # recompute every second block only
            x, aux = checkpoint(blk, x, use_reentrant=False) if i % 2 and self.training else blk(x)
            aux_total = aux_total + aux
        h = self.norm(x).to(torch.bfloat16).flatten(0, 1)
        ce = ChunkedCrossEntropy.apply(h, self.tok.weight, target.flatten(), chunk)
        return ce, aux_total / len(self.blocks)
def main():
    p = argparse.ArgumentParser()
    for name, val in dict(vocab=32000, dim=768, heads=12, hidden=2048, experts=8, layers=8, seq=1024,
                          batch=8, accum=2, steps=5, chunk=2048).items():
        p.add_argument(f"--{name}", type=int, default=val)
    p.add_argument("--device", default="cuda")
    a = p.parse_args()
    torch.manual_seed(0)
    model = MoEGPT(a).to(a.device)
    decay = [q for q in model.parameters() if q.dim() >= 2]
    rest = [q for q in model.parameters() if q.dim() < 2]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=3e-4)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1, (s + 1) / 3) * 0.5 * (1 + math.cos(math.pi * s / a.steps)))
    for step in range(a.steps):
        for _ in range(a.accum):
            ids = torch.randint(0, a.vocab, (a.batch, a.seq + 1), device=a.device)
            with torch.autocast(a.device, dtype=torch.bfloat16):
                ce, aux = model(ids[:, :-1], ids[:, 1:], a.chunk)
            ((ce + 0.01 * aux) / a.accum).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        opt.zero_grad(set_to_none=True)
        print(f"step {step} ce {ce.item():.4f} aux {aux.item():.4f} gnorm {norm.item():.3f}")
if __name__ == "__main__":
    main()
