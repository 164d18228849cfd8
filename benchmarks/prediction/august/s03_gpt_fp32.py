# Character/byte-pair language model in plain fp32: gradient accumulation, clipping, warm-up and cosine decay.
import argparse
import math
import time

import torch
import torch.nn as nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, d, heads, dropout):
        super().__init__()
        self.heads, self.p = heads, dropout
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.p if self.training else 0.0)
        return self.drop(self.out(y.transpose(1, 2).reshape(b, t, d)))


class Block(nn.Module):
    def __init__(self, d, heads, dropout):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = Attention(d, heads, dropout)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d), nn.Dropout(dropout))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocab, d, layers, heads, block, dropout=0.1):
        super().__init__()
        self.block = block
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(block, d)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(d, heads, dropout) for _ in range(layers))
        self.ln = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)
        self.head.weight = self.tok.weight
        self.apply(self._init)

    @staticmethod
    def _init(m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)
        if isinstance(m, nn.Linear) and m.bias is not None:
            nn.init.zeros_(m.bias)

    def forward(self, idx, targets=None):
        x = self.drop(self.tok(idx) + self.pos(torch.arange(idx.size(1), device=idx.device)))
        for blk in self.blocks:
            x = blk(x)
        x = self.ln(x)
        if targets is None:
            return self.head(x[:, -1:]), None
        logits = self.head(x)
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))

    @torch.no_grad()
    def generate(self, idx, n, temperature=0.9, top_k=50):
        for _ in range(n):
            logits, _ = self(idx[:, -self.block:])
            logits = logits[:, -1] / temperature
            kth = torch.topk(logits, top_k).values[:, [-1]]
            probs = logits.masked_fill(logits < kth, float("-inf")).softmax(-1)
            idx = torch.cat([idx, torch.multinomial(probs, 1)], dim=1)
        return idx


def corpus(n, vocab, seed):
    g = torch.Generator().manual_seed(seed)
    ranks = torch.rand(n, generator=g).pow(3.0)
    return (ranks * (vocab - 1)).long()


def get_batch(data, batch, block, device):
    starts = torch.randint(len(data) - block - 1, (batch,))
    x = torch.stack([data[s:s + block] for s in starts])
    y = torch.stack([data[s + 1:s + 1 + block] for s in starts])
    return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)


def lr_at(step, total, warmup, peak):
    if step < warmup:
        return peak * (step + 1) / warmup
    t = (step - warmup) / max(1, total - warmup)
    return peak * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * t)))


@torch.no_grad()
def estimate(model, splits, batch, block, device, iters):
    model.eval()
    out = {}
    for name, data in splits.items():
        out[name] = torch.stack([model(*get_batch(data, batch, block, device))[1] for _ in range(iters)]).mean().item()
    model.train()
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--vocab", type=int, default=24000)
    ap.add_argument("--d-model", type=int, default=896)
    ap.add_argument("--layers", type=int, default=12)
    ap.add_argument("--heads", type=int, default=14)
    ap.add_argument("--block", type=int, default=640)
    ap.add_argument("--micro-batch", type=int, default=6)
    ap.add_argument("--accum", type=int, default=4)
    ap.add_argument("--iters", type=int, default=10)
    ap.add_argument("--lr", type=float, default=4e-4)
    ap.add_argument("--sample", type=int, default=40)
    args = ap.parse_args()

    torch.manual_seed(1337)
    device = "cuda"
    data = corpus(2_000_000, args.vocab, 7)
    cut = int(0.9 * len(data))
    splits = {"train": data[:cut], "val": data[cut:]}
    model = GPT(args.vocab, args.d_model, args.layers, args.heads, args.block).to(device)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters")
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
                            lr=args.lr, betas=(0.9, 0.95))

    for it in range(args.iters):
        for group in opt.param_groups:
            group["lr"] = lr_at(it, args.iters, 3, args.lr)
        t0, total = time.time(), 0.0
        for _ in range(args.accum):
            x, y = get_batch(splits["train"], args.micro_batch, args.block, device)
            _, loss = model(x, y)
            (loss / args.accum).backward()
            total += loss.item() / args.accum
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        print(f"iter {it}: loss {total:.4f} norm {norm:.2f} {1000 * (time.time() - t0):.0f} ms")
        if (it + 1) % 5 == 0:
            print(estimate(model, splits, args.micro_batch, args.block, device, iters=4))

    model.eval()
    start = torch.randint(args.vocab, (3, 8), device=device)
    print(model.generate(start, args.sample)[:, -12:].tolist())


if __name__ == "__main__":
    main()
