"""Train a ViT-L/16 classifier on synthetic images with bf16 autocast."""
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

device = "cuda"

IMAGE = 224
PATCH = 16
DIM = 1024
DEPTH = 24
HEADS = 16
CLASSES = 1000
BATCH = 96
EVAL_BATCH = 128
STEPS = 45
EVAL_STEPS = 5
LR = 3e-4
WARMUP = 10
WORKERS = 4


class SyntheticImages(Dataset):
    """Class dependent low frequency pattern plus noise."""

    def __init__(self, length, seed):
        self.length = length
        self.seed = seed

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        label = int(torch.randint(CLASSES, (1,), generator=g))
        low = torch.randn(3, 14, 14, generator=torch.Generator().manual_seed(label))
        image = F.interpolate(low[None], size=(IMAGE, IMAGE), mode="nearest")[0]
        return image + 0.3 * torch.randn(3, IMAGE, IMAGE, generator=g), label


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(b, n, c))


class DropPath(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if not self.training or self.p == 0:
            return x
        keep = torch.rand(x.shape[0], 1, 1, device=x.device) >= self.p
        return x * keep.to(x.dtype) / (1 - self.p)


class Block(nn.Module):
    def __init__(self, dim, heads, drop):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.drop = DropPath(drop)

    def forward(self, x):
        x = x + self.drop(self.attn(self.norm1(x)))
        return x + self.drop(self.mlp(self.norm2(x)))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        n = (IMAGE // PATCH) ** 2
        self.patch = nn.Conv2d(3, DIM, PATCH, PATCH)
        self.cls = nn.Parameter(torch.zeros(1, 1, DIM))
        self.pos = nn.Parameter(torch.randn(1, n + 1, DIM) * 0.02)
        self.blocks = nn.ModuleList(
            [Block(DIM, HEADS, 0.2 * i / max(DEPTH - 1, 1)) for i in range(DEPTH)])
        self.norm = nn.LayerNorm(DIM, eps=1e-6)
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def lr_at(step):
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


def mixup(x, y, alpha=0.2):
    lam = float(torch.distributions.Beta(alpha, alpha).sample())
    perm = torch.randperm(x.shape[0], device=x.device)
    return lam * x + (1 - lam) * x[perm], y, y[perm], lam


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    correct = total = 0
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(x)
        correct += (logits.argmax(1) == y).sum().item()
        total += y.numel()
    model.train()
    return correct / total


def main():
    torch.manual_seed(0)
    model = ViT().to(device)
    decay = [p for p in model.parameters() if p.ndim > 1]
    no_decay = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.05}, {"params": no_decay, "weight_decay": 0.0}],
        lr=LR, betas=(0.9, 0.95), fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_at)
    train = DataLoader(SyntheticImages(BATCH * STEPS, 1), BATCH, shuffle=True,
                       num_workers=WORKERS, pin_memory=True, drop_last=True)
    val = DataLoader(SyntheticImages(EVAL_BATCH * EVAL_STEPS, 2), EVAL_BATCH,
                     num_workers=WORKERS, pin_memory=True)
    start = time.time()
    for step, (x, y) in enumerate(train):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        x, ya, yb, lam = mixup(x, y)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(x)
            loss = lam * F.cross_entropy(logits, ya, label_smoothing=0.1)
            loss = loss + (1 - lam) * F.cross_entropy(logits, yb, label_smoothing=0.1)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} grad {norm.item():.3f} {time.time() - start:.1f}s")
    print(f"accuracy {evaluate(model, val):.4f}  {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
