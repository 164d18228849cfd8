# CLIP-like image/text pair with activation checkpointing and one optimizer per tower.
import argparse
import math
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    """Images made of a few pure stripes and captions that name them."""

    def __init__(self, n, side, vocab, length, seed):
        self.n, self.side, self.vocab, self.length, self.seed = n, side, vocab, length, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 1_000_003 + i)
        words = int(torch.randint(4, self.length, (1,), generator=g))
        text = torch.zeros(self.length, dtype=torch.long)
        text[:words] = torch.randint(2, self.vocab, (words,), generator=g)
        text[words] = 1
        img = torch.randint(0, 60, (3, 1, self.side), generator=g, dtype=torch.uint8).repeat(1, self.side, 1)
        for j in range(4):
            img[int(text[j]) % 3, j * self.side // 4:(j + 1) * self.side // 4] += int(text[j]) % 180
        return img, text


class Block(nn.Module):
    def __init__(self, dim, heads, causal=False, mlp=4):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, mlp * dim), nn.Linear(mlp * dim, dim)
        self.heads, self.causal = heads, causal

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.fc2(F.gelu(self.fc1(self.n2(x))))


class Tower(nn.Module):
    def __init__(self, dim, depth, heads, out, causal, every):
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim, heads, causal) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(dim), nn.Linear(dim, out, bias=False)
        self.every = every

    def encode(self, x):
        for i, blk in enumerate(self.blocks):
            if self.training and self.every and i % self.every == 0:
                x = checkpoint(blk, x, use_reentrant=False)
            else:
                x = blk(x)
        return self.norm(x)


class Vision(Tower):
    def __init__(self, side, patch, dim, depth, heads, out):
        super().__init__(dim, depth, heads, out, causal=False, every=1)
        self.patch = nn.Conv2d(3, dim, patch, patch)
        self.pos = nn.Parameter(torch.randn(1, (side // patch) ** 2, dim) * 0.02)

    def forward(self, img):
        x = self.patch(img.float() / 127.5 - 1).flatten(2).transpose(1, 2) + self.pos
        return F.normalize(self.out(self.encode(x).mean(1)).float(), dim=-1)


class Text(Tower):
    def __init__(self, vocab, length, dim, depth, heads, out):
        super().__init__(dim, depth, heads, out, causal=True, every=2)
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.randn(1, length, dim) * 0.02)

    def forward(self, ids):
        h = self.encode(self.tok(ids) + self.pos)
        end = (ids == 1).int().argmax(1)
        return F.normalize(self.out(h[torch.arange(len(ids), device=ids.device), end]).float(), dim=-1)


def contrastive(zi, zt, log_scale):
    logits = log_scale.exp().clamp(max=100) * zi @ zt.t()
    target = torch.arange(len(zi), device=zi.device)
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2


@torch.no_grad()
def recall(vision, text, loader, device):
    vision.eval(), text.eval()
    zi, zt = [], []
    for img, ids in loader:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            zi.append(vision(img.to(device)))
            zt.append(text(ids.to(device)))
    zi, zt = torch.cat(zi), torch.cat(zt)
    top = (zi @ zt.t()).topk(5, dim=1).indices
    vision.train(), text.train()
    return (top == torch.arange(len(zi), device=device)[:, None]).any(1).float().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--side", type=int, default=168)
    ap.add_argument("--patch", type=int, default=14)
    ap.add_argument("--vdim", type=int, default=576)
    ap.add_argument("--tdim", type=int, default=448)
    ap.add_argument("--depth", type=int, default=10)
    ap.add_argument("--vocab", type=int, default=17000)
    ap.add_argument("--length", type=int, default=52)
    ap.add_argument("--batch", type=int, default=190)
    ap.add_argument("--steps", type=int, default=44)
    ap.add_argument("--workers", type=int, default=2)
    args = ap.parse_args()

    torch.manual_seed(16)
    device = torch.device("cuda")
    vision = Vision(args.side, args.patch, args.vdim, args.depth, args.vdim // 64, 384).to(device)
    text = Text(args.vocab, args.length, args.tdim, args.depth, args.tdim // 64, 384).to(device)
    log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07), device=device))
    opt_v = torch.optim.AdamW(vision.parameters(), lr=4e-4, weight_decay=0.1, betas=(0.9, 0.98))
    opt_t = torch.optim.SGD([{"params": text.parameters()}, {"params": [log_scale], "lr": 1e-3}], lr=0.02, momentum=0.9)
    scheds = [torch.optim.lr_scheduler.CosineAnnealingLR(o, args.steps) for o in (opt_v, opt_t)]
    train = DataLoader(Pairs(args.steps * args.batch, args.side, args.vocab, args.length, 1), batch_size=args.batch,
                       shuffle=True, drop_last=True, num_workers=args.workers, pin_memory=True)
    val = DataLoader(Pairs(500, args.side, args.vocab, args.length, 2), batch_size=125)

    for step, (img, ids) in enumerate(train):
        img, ids = img.to(device, non_blocking=True), ids.to(device, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            zi, zt = vision(img), text(ids)
        loss = contrastive(zi, zt, log_scale)
        loss.backward()
        nn.utils.clip_grad_norm_(vision.parameters(), 1.0)
        nn.utils.clip_grad_norm_(text.parameters(), 1.0)
        for o in (opt_v, opt_t):
            o.step()
            o.zero_grad(set_to_none=True)
        for s in scheds:
            s.step()
        if step % 8 == 0:
            print(f"step {step} loss {loss.item():.4f} scale {log_scale.exp().item():.2f}")
    print(f"recall@5 {recall(vision, text, val, device):.3f}")
    with tempfile.TemporaryDirectory() as tmp:
        torch.save({"vision": vision.state_dict(), "text": text.state_dict(), "opt_v": opt_v.state_dict()},
                   os.path.join(tmp, "clip.pt"))


if __name__ == "__main__":
    main()
