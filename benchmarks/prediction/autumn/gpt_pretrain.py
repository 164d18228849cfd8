"""Pre-train a small GPT on synthetic text. Gradient accumulation, periodic validation."""
import math
import os
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

TINY = os.environ.get("TINY") == "1"
SCALE = float(os.environ.get("SCALE", "1"))
device = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class GPTConfig:
    vocab_size: int = 16384
    block_size: int = 512
    n_layer: int = 6
    n_head: int = 8
    n_embd: int = 512
    dropout: float = 0.0
    # training
    batch_size: int = max(1, round(12 * SCALE))
    eval_batch_size: int = max(1, round(6 * SCALE))
    grad_accum: int = 4
    max_steps: int = 12
    eval_interval: int = 4
    eval_iters: int = 4
    lr: float = 6e-4
    warmup: int = 3
    weight_decay: float = 0.1
    grad_clip: float = 1.0


cfg = GPTConfig()
if TINY:
    cfg = GPTConfig(vocab_size=200, block_size=32, n_layer=2, n_head=2, n_embd=32,
                    batch_size=max(1, round(4 * SCALE)), eval_batch_size=max(1, round(2 * SCALE)))


class CausalSelfAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_attn = nn.Linear(c.n_embd, 3 * c.n_embd, bias=False)
        self.c_proj = nn.Linear(c.n_embd, c.n_embd, bias=False)
        self.n_head = c.n_head
        self.dropout = c.dropout

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                           dropout_p=self.dropout if self.training else 0.0)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_fc = nn.Linear(c.n_embd, 4 * c.n_embd, bias=False)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * c.n_embd, c.n_embd, bias=False)

    def forward(self, x):
        return self.c_proj(self.gelu(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1 = nn.LayerNorm(c.n_embd)
        self.attn = CausalSelfAttention(c)
        self.ln_2 = nn.LayerNorm(c.n_embd)
        self.mlp = MLP(c)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config = c
        self.wte = nn.Embedding(c.vocab_size, c.n_embd)
        self.wpe = nn.Embedding(c.block_size, c.n_embd)
        self.h = nn.ModuleList(Block(c) for _ in range(c.n_layer))
        self.ln_f = nn.LayerNorm(c.n_embd)
        self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        self.apply(self._init_weights)
        for n, p in self.named_parameters():
            if n.endswith("c_proj.weight"):
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * c.n_layer))

    def _init_weights(self, m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)

    def forward(self, idx, targets=None):
        T = idx.size(1)
        pos = torch.arange(T, device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss

    def configure_optimizer(self, c):
        decay = [p for p in self.parameters() if p.dim() >= 2]
        no_decay = [p for p in self.parameters() if p.dim() < 2]
        groups = [{"params": decay, "weight_decay": c.weight_decay},
                  {"params": no_decay, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=c.lr, betas=(0.9, 0.95), fused=device == "cuda")


def make_corpus(n, vocab, seed):
    # zipf-ish unigrams with a bit of local repetition so there is something to learn
    g = torch.Generator().manual_seed(seed)
    probs = 1.0 / torch.arange(1, vocab + 1).float()
    data = torch.multinomial(probs, n, replacement=True, generator=g)
    copy = torch.rand(n, generator=g) < 0.3
    copy[:8] = False
    idx = torch.arange(n)
    data = torch.where(copy, data[(idx - 7).clamp(min=0)], data)
    return data


def get_batch(data, bs, c):
    ix = torch.randint(len(data) - c.block_size - 1, (bs,))
    x = torch.stack([data[i:i + c.block_size] for i in ix])
    y = torch.stack([data[i + 1:i + 1 + c.block_size] for i in ix])
    if device == "cuda":
        return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
    return x, y


def estimate_loss(model, data, c):
    model.eval()
    losses = []
    for _ in range(c.eval_iters):
        x, y = get_batch(data, c.eval_batch_size, c)
        with torch.autocast(device, dtype=torch.bfloat16):
            _, loss = model(x, y)
        losses.append(loss)
    model.train()
    return torch.stack(losses).mean()


def get_lr(step, c):
    if step < c.warmup:
        return c.lr * (step + 1) / c.warmup
    t = (step - c.warmup) / max(1, c.max_steps - c.warmup)
    return 0.1 * c.lr + 0.45 * c.lr * (1 + math.cos(math.pi * t))


def main():
    torch.manual_seed(1337)
    torch.backends.cuda.matmul.allow_tf32 = True
    n_tok = 20_000 if TINY else 500_000
    train_data = make_corpus(n_tok, cfg.vocab_size, 1)
    val_data = make_corpus(n_tok // 10, cfg.vocab_size, 2)

    model = GPT(cfg).to(device)
    optimizer = model.configure_optimizer(cfg)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters")

    t0 = time.time()
    for step in range(cfg.max_steps):
        for g in optimizer.param_groups:
            g["lr"] = get_lr(step, cfg)

        if step > 0 and step % cfg.eval_interval == 0:
            val = estimate_loss(model, val_data, cfg)
            print(f"step {step}: val loss {val.item():.4f}")

        for _ in range(cfg.grad_accum):
            x, y = get_batch(train_data, cfg.batch_size, cfg)
            with torch.autocast(device, dtype=torch.bfloat16):
                logits, loss = model(x, y)
                loss = loss / cfg.grad_accum
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 3 == 0:
            print(f"iter {step}: loss {loss.item() * cfg.grad_accum:.4f}, {time.time() - t0:.1f}s")
    print("done")


if __name__ == "__main__":
    main()
