"""Pretrain a small GPT on packed documents: block-diagonal causal mask, activation checkpointing, fused CE head."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class ChunkedLinearCE(torch.autograd.Function):
    """Linear + cross entropy without ever holding the full logits; gradients are made in forward."""

    @staticmethod
    def forward(ctx, x, weight, target, chunk):
        n_valid = (target >= 0).sum().clamp(min=1)
        grad_x, grad_w = torch.empty_like(x), torch.zeros_like(weight, dtype=torch.float32)
        loss = x.new_zeros((), dtype=torch.float32)
        w = weight.to(x.dtype)
        for s in range(0, x.size(0), chunk):
            xs, ts = x[s:s + chunk], target[s:s + chunk]
            logits = (xs @ w.t()).float()
            logp = F.log_softmax(logits, dim=-1)
            loss += F.nll_loss(logp, ts, ignore_index=-1, reduction="sum")
            g = logp.exp_()
            g[torch.arange(len(ts), device=x.device), ts.clamp(min=0)] -= 1.0
            g = g.mul_((ts >= 0).unsqueeze(1) / n_valid).to(x.dtype)
            grad_x[s:s + chunk] = g @ w
            grad_w += (g.t() @ xs).float()
        ctx.save_for_backward(grad_x, grad_w)
        return loss / n_valid

    @staticmethod
    def backward(ctx, gout):
        grad_x, grad_w = ctx.saved_tensors
        return grad_x * gout, grad_w * gout, None, None


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x, mask):
        B, T, D = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.proj(a.transpose(1, 2).reshape(B, T, D))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, vocab, d, layers, heads, ctx_len):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(ctx_len, d)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)

    def forward(self, ids, pos, doc, target):
        mask = (doc[:, :, None] == doc[:, None, :]).tril_().unsqueeze(1)
        x = self.tok(ids) + self.pos(pos)
        for i, blk in enumerate(self.blocks):
            if self.training and i % 4 != 3:  # every fourth block keeps its activations
                x = checkpoint(blk, x, mask, use_reentrant=False)
            else:
                x = blk(x, mask)
        return ChunkedLinearCE.apply(self.norm(x).to(torch.bfloat16).flatten(0, 1), self.head.weight, target.flatten(), 2048)


def pack(batch, T, vocab, gen):
    ids, pos, doc, tgt = (torch.zeros(batch, T, dtype=torch.long) for _ in range(4))
    for b in range(batch):
        t, d = 0, 0
        while t < T:
            n = min(int(torch.randint(T // 32, T // 3, (1,), generator=gen)), T - t)
            words = (torch.rand(n + 1, generator=gen) ** 3 * vocab).long()
            ids[b, t:t + n], tgt[b, t:t + n] = words[:-1], words[1:]
            tgt[b, t + n - 1] = -1
            pos[b, t:t + n] = torch.arange(n)
            doc[b, t:t + n] = d
            t, d = t + n, d + 1
    return ids, pos, doc, tgt


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--device", default="cuda")
    defaults = dict(dim=1024, layers=12, vocab=32000, seq=4096, batch=3, accum=2, steps=8)
    for name, value in defaults.items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    a = p.parse_args()
    torch.manual_seed(1337)
    gen = torch.Generator().manual_seed(7)
    model = GPT(a.vocab, a.dim, a.layers, max(a.dim // 64, 1), a.seq).to(a.device)
    opt = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.1)
    for step in range(a.steps):
        total = 0.0
        for _ in range(a.accum):
            batch = [t.to(a.device, non_blocking=True) for t in pack(a.batch, a.seq, a.vocab, gen)]
            with torch.autocast(a.device, dtype=torch.bfloat16):
                loss = model(*batch) / a.accum
            loss.backward()
            total += loss.item()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        print(f"step {step} loss {total:.4f} gnorm {norm:.2f}")
        if step == a.steps // 2:
            model.eval()
            with torch.no_grad(), torch.autocast(a.device, dtype=torch.bfloat16):
                ev = [model(*[t.to(a.device) for t in pack(2 * a.batch, a.seq, a.vocab, gen)]) for _ in range(2)]
            print(f"  eval loss {torch.stack(ev).mean().item():.4f}")
            model.train()


if __name__ == "__main__":
    main()
