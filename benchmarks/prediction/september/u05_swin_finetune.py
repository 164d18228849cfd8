"""Fine-tune a Swin-T for fine-grained classification: drop path, mixup, layer-wise lr decay, EMA, bf16 autocast."""
import argparse
import copy
import math
import re

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import SwinConfig, SwinForImageClassification


class Leaves(Dataset):
    """Tinted noise at low resolution, blown up; the tint and stripe frequency make the class."""

    def __init__(self, n, size, classes, seed):
        self.n, self.size, self.classes, self.seed = n, size, classes, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + 7919 * i)
        y = int(torch.randint(self.classes, (1,), generator=g))
        small = torch.rand(3, 28, 28, generator=g)
        img = F.interpolate(small[None], size=(self.size, self.size), mode="nearest")[0]
        ramp = torch.linspace(0, 1, self.size)
        img = 0.6 * img + 0.4 * torch.sin(ramp * (3 + y)).abs()
        return (img - 0.5) / 0.25, y


def mixup(x, y, classes, alpha):
    lam = float(torch.distributions.Beta(alpha, alpha).sample())
    perm = torch.randperm(x.size(0), device=x.device)
    target = F.one_hot(y, classes).float()
    return lam * x + (1 - lam) * x[perm], lam * target + (1 - lam) * target[perm]


class EMA:
    def __init__(self, model, decay=0.995):
        self.decay = decay
        self.module = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for e, p in zip(self.module.parameters(), model.parameters()):
            e.lerp_(p, 1 - self.decay)
        for e, b in zip(self.module.buffers(), model.buffers()):
            e.copy_(b)


def layer_groups(model, base_lr, decay, wd):
    """Parameters nearer the input get a smaller rate."""
    groups = {}
    for name, p in model.named_parameters():
        m = re.search(r"encoder\.layers\.(\d)", name)
        depth = 0 if "embeddings" in name else (int(m.group(1)) + 1 if m else 5)
        key = (depth, p.ndim > 1)
        groups.setdefault(key, []).append(p)
    return [{"params": ps, "lr": base_lr * decay ** (5 - d), "weight_decay": wd if w else 0.0}
            for (d, w), ps in groups.items()]


@torch.no_grad()
def accuracy(model, loader):
    right = total = 0
    for x, y in loader:
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(pixel_values=x).logits
        right += (logits.argmax(1) == y).sum().item()
        total += y.numel()
    return right / total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--image-size", type=int, default=224)
    ap.add_argument("--embed-dim", type=int, default=96)
    ap.add_argument("--depths", type=int, nargs=4, default=[2, 2, 6, 2])
    ap.add_argument("--drop-path", type=float, default=0.2)
    ap.add_argument("--classes", type=int, default=37)
    ap.add_argument("--batch", type=int, default=52)
    ap.add_argument("--train-images", type=int, default=1100)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--lr", type=float, default=5e-4)
    ap.add_argument("--seed", type=int, default=3)
    args = ap.parse_args()
    torch.manual_seed(args.seed)

    cfg = SwinConfig(image_size=args.image_size, embed_dim=args.embed_dim, depths=args.depths,
                     num_heads=[3, 6, 12, 24], window_size=7, drop_path_rate=args.drop_path, num_labels=args.classes)
    model = SwinForImageClassification(cfg).cuda()
    ema = EMA(model)
    optimizer = torch.optim.AdamW(layer_groups(model, args.lr, 0.8, 0.05))
    train = DataLoader(Leaves(args.train_images, args.image_size, args.classes, 1), args.batch, shuffle=True,
                       drop_last=True, num_workers=2, pin_memory=True, persistent_workers=True)
    valid = DataLoader(Leaves(180, args.image_size, args.classes, 2), 2 * args.batch)
    total = args.epochs * len(train)
    warm = max(1, total // 10)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: (s + 1) / warm if s < warm else 0.5 * (1 + math.cos(math.pi * (s - warm) / (total - warm))))

    for epoch in range(args.epochs):
        model.train()
        mean_loss = torch.zeros((), device="cuda")
        for x, y in train:
            x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
            x, target = mixup(x, y, args.classes, 0.4)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16):
                logits = model(pixel_values=x).logits
                loss = F.cross_entropy(logits, target, label_smoothing=0.05)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            scheduler.step()
            ema.update(model)
            mean_loss += loss.detach()
        model.eval()
        print(f"epoch {epoch}: loss {mean_loss.item() / len(train):.4f} acc {accuracy(model, valid):.4f} "
              f"ema acc {accuracy(ema.module, valid):.4f}", flush=True)


if __name__ == "__main__":
    main()
