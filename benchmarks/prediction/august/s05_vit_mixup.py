"""Vision transformer for a plant-disease style classification task (38 classes): mixup, fp16 with loss scaling."""
import argparse
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.amp import GradScaler, autocast
from torch.utils.data import DataLoader, Dataset


class LeafImages(Dataset):
    def __init__(self, n, classes, crop, train, seed):
        rng = np.random.RandomState(seed)
        self.full = crop + 16
        self.pool = rng.randint(0, 256, size=(96, 3, self.full, self.full), dtype=np.uint8)
        self.index = rng.randint(0, len(self.pool), size=n)
        self.labels = rng.randint(0, classes, size=n)
        self.crop, self.train = crop, train

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        img = self.pool[self.index[i]]
        if self.train:
            y, x = np.random.randint(0, 17, size=2)
            img = img[:, y:y + self.crop, x:x + self.crop]
            if np.random.rand() < 0.5:
                img = img[:, :, ::-1]
        else:
            img = img[:, 8:8 + self.crop, 8:8 + self.crop]
        return torch.from_numpy(np.ascontiguousarray(img)), int(self.labels[i])


class DropPath(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if not self.training or self.p == 0:
            return x
        keep = torch.empty(x.size(0), 1, 1, device=x.device, dtype=x.dtype).bernoulli_(1 - self.p)
        return x * keep / (1 - self.p)


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads, mlp_ratio, drop_path):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        hidden = int(dim * mlp_ratio)
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.gamma1, self.gamma2 = nn.Parameter(1e-1 * torch.ones(dim)), nn.Parameter(1e-1 * torch.ones(dim))
        self.drop_path = DropPath(drop_path)

    def attention(self, x):
        b, n, d = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
        return self.proj(out.transpose(1, 2).reshape(b, n, d))

    def forward(self, x):
        x = x + self.drop_path(self.gamma1 * self.attention(self.norm1(x)))
        return x + self.drop_path(self.gamma2 * self.fc2(F.gelu(self.fc1(self.norm2(x)))))


class ViT(nn.Module):
    def __init__(self, img, patch, dim, depth, heads, classes, drop_path=0.1):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, patch, stride=patch)
        n = (img // patch) ** 2
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, n + 1, dim) * 0.02)
        rates = torch.linspace(0, drop_path, depth).tolist()
        self.layers = nn.ModuleList(EncoderLayer(dim, heads, 4.0, r) for r in rates)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.size(0), -1, -1), x], dim=1) + self.pos
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


def prepare(x, device):
    x = x.to(device, non_blocking=True).float().div_(255)
    return (x - 0.45) / 0.225


def mixup(x, y, classes, alpha, smoothing):
    target = torch.full((y.size(0), classes), smoothing / classes, device=y.device)
    target.scatter_add_(1, y[:, None], torch.full_like(y[:, None], 1 - smoothing, dtype=target.dtype))
    lam = float(np.random.beta(alpha, alpha))
    perm = torch.randperm(x.size(0), device=x.device)
    return lam * x + (1 - lam) * x[perm], lam * target + (1 - lam) * target[perm]


@torch.inference_mode()
def validate(model, loader, device):
    model.eval()
    right = seen = 0
    for x, y in loader:
        with autocast("cuda", dtype=torch.float16):
            logits = model(prepare(x, device))
        right += (logits.argmax(1).cpu() == y).sum().item()
        seen += len(y)
    return right / seen


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--image", type=int, default=208)
    p.add_argument("--patch", type=int, default=16)
    p.add_argument("--dim", type=int, default=576)
    p.add_argument("--depth", type=int, default=14)
    p.add_argument("--heads", type=int, default=9)
    p.add_argument("--classes", type=int, default=38)
    p.add_argument("--batch", type=int, default=72)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--batches", type=int, default=22)
    p.add_argument("--workers", type=int, default=2)
    args = p.parse_args()

    torch.manual_seed(0)
    np.random.seed(0)
    device = torch.device("cuda")
    train = LeafImages(args.batch * args.batches, args.classes, args.image, True, 1)
    valid = LeafImages(args.batch * 5 + 17, args.classes, args.image, False, 2)
    train_loader = DataLoader(train, args.batch, shuffle=True, drop_last=True, num_workers=args.workers, pin_memory=True)
    valid_loader = DataLoader(valid, args.batch, num_workers=args.workers)

    model = ViT(args.image, args.patch, args.dim, args.depth, args.heads, args.classes).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.05)
    total = args.epochs * len(train_loader)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1.0, (s + 1) / 5) * 0.5 * (1 + math.cos(math.pi * s / total)))
    scaler = GradScaler("cuda", init_scale=2.0 ** 12)

    for epoch in range(args.epochs):
        model.train()
        running = 0.0
        for x, y in train_loader:
            x, target = mixup(prepare(x, device), y.to(device), args.classes, 0.4, 0.1)
            with autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x), target)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            running += loss.item()
        acc = validate(model, valid_loader, device)
        print(f"epoch {epoch}: loss {running / len(train_loader):.4f} accuracy {acc:.4f} scale {scaler.get_scale():.0f}")


if __name__ == "__main__":
    main()
