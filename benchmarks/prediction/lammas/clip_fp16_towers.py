"""CLIP-style contrastive pretraining: ViT image tower, causal text tower, fp16 autocast with a GradScaler."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self, n, size, ctx, vocab):
        self.n, self.size, self.ctx, self.vocab = n, size, ctx, vocab
        self.protos = torch.randn(64, 3, 8, 8)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        k = i % 64
        img = F.interpolate(self.protos[k:k + 1], size=self.size, mode="nearest")[0]
        img = (img * 40 + 128).clamp(0, 255).to(torch.uint8)
        g = torch.Generator().manual_seed(i)
        length = int(torch.randint(8, self.ctx, (1,), generator=g))
        text = torch.zeros(self.ctx, dtype=torch.long)
        text[:length] = torch.randint(1, self.vocab - 1, (length,), generator=g)
        text[0] = 1 + k
        text[length - 1] = self.vocab - 1  # end of text has the highest id
        return img, text


class ImageTower(nn.Module):
    def __init__(self, size, patch, width, layers, embed):
        super().__init__()
        self.stem = nn.Conv2d(3, width, patch, patch, bias=False)
        self.cls = nn.Parameter(torch.randn(1, 1, width) * width ** -0.5)
        self.pos = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * width ** -0.5)
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.proj = nn.LayerNorm(width), nn.Linear(width, embed, bias=False)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.size(0), -1, -1), x], 1) + self.pos
        return self.proj(self.norm(self.blocks(x)[:, 0]))


class TextTower(nn.Module):
    def __init__(self, vocab, ctx, width, layers, embed):
        super().__init__()
        self.tok = nn.Embedding(vocab, width)
        self.pos = nn.Parameter(torch.randn(1, ctx, width) * 0.01)
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.proj = nn.LayerNorm(width), nn.Linear(width, embed, bias=False)
        self.register_buffer("mask", torch.triu(torch.full((ctx, ctx), float("-inf")), 1), persistent=False)

    def forward(self, ids):
        x = self.blocks(self.tok(ids) + self.pos, mask=self.mask)
        x = self.norm(x)[torch.arange(ids.size(0), device=ids.device), ids.argmax(-1)]
        return self.proj(x)


class CLIP(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.image = ImageTower(args.size, 16, args.width, args.layers, args.embed)
        self.text = TextTower(args.vocab, args.ctx, args.width, args.layers, args.embed)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, img, txt):
        return F.normalize(self.image(img).float(), dim=-1), F.normalize(self.text(txt).float(), dim=-1), self.logit_scale.exp()


def to_device(batch, device):
    img, txt = batch
    img = img.to(device, non_blocking=True).float().div_(255).sub_(0.45).div_(0.27)
    return img, txt.to(device, non_blocking=True)


@torch.no_grad()
def recall_at(model, loader, device, ks=(1, 5)):
    model.eval()
    zi, zt = [], []
    for batch in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            a, b, _ = model(*to_device(batch, device))
        zi.append(a)
        zt.append(b)
    sim = torch.cat(zi) @ torch.cat(zt).T
    rank = (sim > sim.diag()[:, None]).sum(1)
    model.train()
    return {k: (rank < k).float().mean().item() for k in ks}


def main():
    p = argparse.ArgumentParser()
    for name, default in dict(size=224, width=640, layers=8, embed=512, vocab=49408, ctx=77, batch=192, items=960, val=288, epochs=2).items():
        p.add_argument(f"--{name}", type=int, default=default)
    args = p.parse_args()
    torch.manual_seed(11)
    device = torch.device("cuda")

    model = CLIP(args).to(device)
    decay = [q for q in model.parameters() if q.ndim >= 2]
    rest = [q for q in model.parameters() if q.ndim < 2]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.2}, {"params": rest, "weight_decay": 0.0}], lr=5e-4, betas=(0.9, 0.98))
    train = DataLoader(Pairs(args.items, args.size, args.ctx, args.vocab), args.batch, shuffle=True, drop_last=True, num_workers=2, pin_memory=True)
    valid = DataLoader(Pairs(args.val, args.size, args.ctx, args.vocab), args.batch)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * len(train))
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0 ** 14)
    for epoch in range(args.epochs):
        for step, batch in enumerate(train):
            img, txt = to_device(batch, device)
            with torch.autocast("cuda", dtype=torch.float16):
                zi, zt, scale = model(img, txt)
            logits = scale * zi @ zt.T
            target = torch.arange(logits.size(0), device=device)
            loss = 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target))
            opt.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            sched.step()
            with torch.no_grad():
                model.logit_scale.clamp_(0, math.log(100))
            print(f"epoch {epoch} step {step} loss {loss.item():.4f} grad {norm.item():.3f} scale {scaler.get_scale():.0f}")
        print(f"epoch {epoch} recall {recall_at(model, valid, device)}")


if __name__ == "__main__":
    main()
