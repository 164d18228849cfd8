"""ViT fine-tuning in two stages: first the head on a frozen backbone, then everything with layer-wise lr decay."""
import argparse
import math
import time

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import ViTConfig, ViTForImageClassification


class Herbarium(Dataset):
    """Leaf-like pictures: a class-dependent grating on a random background."""

    def __init__(self, n, size, n_classes, seed):
        g = torch.Generator().manual_seed(seed)
        self.n, self.size, self.n_classes = n, size, n_classes
        self.y = torch.randint(0, n_classes, (n,), generator=g)
        self.phase = torch.rand(n, generator=g) * math.tau
        self.tint = torch.rand(n, 3, 1, 1, generator=g)
        ax = torch.linspace(0, 1, size)
        self.xx, self.yy = torch.meshgrid(ax, ax, indexing="ij")

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        k = int(self.y[i])
        angle = math.pi * k / self.n_classes
        wave = torch.sin((self.xx * math.cos(angle) + self.yy * math.sin(angle)) * (12 + k) + self.phase[i])
        img = (0.5 + 0.3 * wave)[None] * self.tint[i]
        return (img - 0.5) / 0.5, k


def set_trainable(model, backbone):
    for p in model.vit.parameters():
        p.requires_grad_(backbone)
    for p in model.classifier.parameters():
        p.requires_grad_(True)


def depth_of(name, n_layers):
    if name.startswith("classifier") or name.startswith("vit.layernorm"):
        return n_layers + 1
    parts = name.split(".")
    for part in parts:
        if part.isdigit() and "embeddings" not in parts:
            return int(part) + 1
    return 0


def layerwise_groups(model, lr, decay, n_layers):
    buckets = {}
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        d = depth_of(name, n_layers)
        wd = 0.0 if p.ndim <= 1 else 0.05
        key = (d, wd)
        if key not in buckets:
            buckets[key] = {"params": [], "lr": lr * decay ** (n_layers + 1 - d), "weight_decay": wd}
        buckets[key]["params"].append(p)
    return list(buckets.values())


def fit(model, loader, optimizer, epochs, steps, tag, smoothing=0.1):
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=[g["lr"] for g in optimizer.param_groups], total_steps=epochs * steps)
    for epoch in range(epochs):
        model.train()
        t0, total = time.time(), 0.0
        for step, (x, y) in enumerate(loader):
            if step == steps:
                break
            x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                logits = model(pixel_values=x).logits
                loss = F.cross_entropy(logits, y, label_smoothing=smoothing)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_((p for p in model.parameters() if p.requires_grad), 1.0)
            optimizer.step()
            scheduler.step()
            total += loss.item()
        print(f"[{tag}] epoch {epoch} loss {total / steps:.4f} ({time.time() - t0:.1f}s)")


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    right = seen = 0
    for x, y in loader:
        x, y = x.to("cuda"), y.to("cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            # test-time augmentation: average with the mirror image
            logits = model(pixel_values=x).logits + model(pixel_values=x.flip(-1)).logits
        right += (logits.argmax(1) == y).sum().item()
        seen += y.numel()
    return right / seen


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--image-size", type=int, default=240)
    ap.add_argument("--classes", type=int, default=37)
    ap.add_argument("--batch-size", type=int, default=44)
    ap.add_argument("--head-epochs", type=int, default=1)
    ap.add_argument("--full-epochs", type=int, default=2)
    ap.add_argument("--steps", type=int, default=10)
    ap.add_argument("--layers", type=int, default=12)
    ap.add_argument("--hidden", type=int, default=768)
    args = ap.parse_args()

    torch.manual_seed(11)
    cfg = ViTConfig(image_size=args.image_size, patch_size=16, num_labels=args.classes,
                    hidden_size=args.hidden, num_hidden_layers=args.layers,
                    num_attention_heads=args.hidden // 64, intermediate_size=args.hidden * 4,
                    hidden_dropout_prob=0.1)
    model = ViTForImageClassification(cfg).to("cuda")

    train = Herbarium(args.batch_size * args.steps, args.image_size, args.classes, 0)
    test = Herbarium(128, args.image_size, args.classes, 1)
    loader = DataLoader(train, args.batch_size, shuffle=True, drop_last=True, pin_memory=True)
    test_loader = DataLoader(test, 64)

    set_trainable(model, backbone=False)
    head_opt = torch.optim.AdamW(model.classifier.parameters(), lr=3e-3)
    fit(model, loader, head_opt, args.head_epochs, args.steps, "head")
    print(f"accuracy after head: {accuracy(model, test_loader):.3f}")

    set_trainable(model, backbone=True)
    full_opt = torch.optim.AdamW(layerwise_groups(model, 3e-4, 0.8, args.layers))
    fit(model, loader, full_opt, args.full_epochs, args.steps, "full")
    print(f"accuracy after full: {accuracy(model, test_loader):.3f}")


if __name__ == "__main__":
    main()
