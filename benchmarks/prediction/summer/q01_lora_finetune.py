"""LoRA instruction tuning of a frozen decoder-only base model (bf16 weights)."""
import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return h.to(x.dtype) * self.weight


class LoRALinear(nn.Module):
    """y = W x + (alpha / r) * B A x, with W frozen."""

    def __init__(self, d_in, d_out, rank, alpha, dropout):
        super().__init__()
        self.base = nn.Linear(d_in, d_out, bias=False)
        self.base.weight.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.empty(rank, d_in, dtype=torch.float32))
        self.lora_b = nn.Parameter(torch.zeros(d_out, rank, dtype=torch.float32))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))
        self.scale = alpha / rank
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        out = self.base(x)
        z = F.linear(self.drop(x), self.lora_a.to(x.dtype))
        return out + F.linear(z, self.lora_b.to(x.dtype)) * self.scale


def rope_tables(seq, dim, device, theta=10000.0):
    inv = 1.0 / theta ** (torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim)
    ang = torch.outer(torch.arange(seq, device=device, dtype=torch.float32), inv)
    return ang.cos(), ang.sin()


def apply_rope(x, cos, sin):
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        d, ff = args.dim, args.ff
        self.heads = args.heads
        lora = dict(rank=args.rank, alpha=args.alpha, dropout=args.lora_dropout)
        self.norm1, self.norm2 = RMSNorm(d), RMSNorm(d)
        self.q = LoRALinear(d, d, **lora)
        self.k = nn.Linear(d, d, bias=False)
        self.v = LoRALinear(d, d, **lora)
        self.o = nn.Linear(d, d, bias=False)
        self.gate = nn.Linear(d, ff, bias=False)
        self.up = nn.Linear(d, ff, bias=False)
        self.down = nn.Linear(ff, d, bias=False)

    def forward(self, x, cos, sin):
        b, t, d = x.shape
        h = self.norm1(x)
        q, k, v = (p(h).view(b, t, self.heads, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
        att = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(att.transpose(1, 2).reshape(b, t, d))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class CausalLM(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.Embedding(args.vocab, args.dim)
        self.blocks = nn.ModuleList([Block(args) for _ in range(args.layers)])
        self.norm = RMSNorm(args.dim)
        self.head = nn.Linear(args.dim, args.vocab, bias=False)
        self.head_dim = args.dim // args.heads

    def forward(self, ids):
        x = self.embed(ids)
        cos, sin = rope_tables(ids.shape[1], self.head_dim, ids.device)
        if self.training:
            x.requires_grad_(True)
        for blk in self.blocks:
            if self.training:
                x = checkpoint(blk, x, cos, sin, use_reentrant=False)
            else:
                x = blk(x, cos, sin)
        return self.head(self.norm(x))


def lm_loss(logits, labels):
    logits = logits[:, :-1].float()
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1), ignore_index=-100)


def make_batch(args, device):
    ids = torch.randint(0, args.vocab, (args.batch, args.seq), device=device)
    labels = ids.clone()
    labels[:, : args.seq // 4] = -100  # the prompt is not trained on
    return ids, labels


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=32000)
    p.add_argument("--dim", type=int, default=2560)
    p.add_argument("--layers", type=int, default=24)
    p.add_argument("--heads", type=int, default=20)
    p.add_argument("--ff", type=int, default=6912)
    p.add_argument("--rank", type=int, default=16)
    p.add_argument("--alpha", type=float, default=32.0)
    p.add_argument("--lora-dropout", type=float, default=0.05)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--seq", type=int, default=2048)
    p.add_argument("--accum", type=int, default=2)
    p.add_argument("--steps", type=int, default=4)
    p.add_argument("--lr", type=float, default=2e-4)
    args = p.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    # build straight in bf16 on the device, a fp32 copy on the host would be slow
    torch.set_default_dtype(torch.bfloat16)
    with device:
        model = CausalLM(args)
    torch.set_default_dtype(torch.float32)
    for name, prm in model.named_parameters():
        prm.requires_grad_("lora_" in name)
    trainable = [prm for prm in model.parameters() if prm.requires_grad]
    total = sum(prm.numel() for prm in model.parameters())
    print(f"{total / 1e6:.1f}M parameters, {sum(q.numel() for q in trainable) / 1e6:.2f}M trainable")

    opt = torch.optim.AdamW(trainable, lr=args.lr, weight_decay=0.0, fused=device.type == "cuda")
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 2))
    model.train()
    for step in range(args.steps):
        t0 = time.time()
        running = 0.0
        for _ in range(args.accum):
            ids, labels = make_batch(args, device)
            loss = lm_loss(model(ids), labels) / args.accum
            loss.backward()
            running += loss.item()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        opt.step()
        sched.step()
        opt.zero_grad(set_to_none=True)
        print(f"step {step} loss {running:.4f} ({time.time() - t0:.2f}s)")

    model.eval()
    with torch.no_grad():
        ids, labels = make_batch(args, device)
        print(f"val ppl {math.exp(min(20.0, lm_loss(model(ids), labels).item())):.1f}")


if __name__ == "__main__":
    main()
