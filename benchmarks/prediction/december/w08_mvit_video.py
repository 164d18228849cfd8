"""Action recognition with torchvision's MViT v2 (small), 16 frames, bf16 autocast, mixup over clips, accumulation over 2 batches.

Evaluation with three temporal crops per clip. Clips are made on the device from uint8 frames.
"""
import argparse
import os
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision.models.video import mvit_v2_s

FRAMES, SIZE = 16, 224  # fixed by the architecture


class MovingBlobs(Dataset):
    """Clips in which a blob moves; the direction and speed are the class."""

    def __init__(self, clips, frames, size, classes, seed):
        self.clips, self.frames, self.size, self.classes, self.seed = clips, frames, size, classes, seed
        axis = torch.arange(size // 4)
        self.yy, self.xx = torch.meshgrid(axis, axis, indexing="ij")

    def __len__(self):
        return self.clips

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 65537 + i)
        label = int(torch.randint(0, self.classes, (1,), generator=g))
        s = self.size // 4
        start = torch.rand(2, generator=g) * s
        angle = torch.tensor(2 * 3.14159 * label / self.classes)
        t = torch.arange(self.frames).view(-1, 1, 1)
        cy = (start[0] + t * torch.sin(angle)) % s
        cx = (start[1] + t * torch.cos(angle)) % s
        blob = torch.exp(-((self.yy - cy) ** 2 + (self.xx - cx) ** 2) / (s / 2)) * 255
        return blob.to(torch.uint8), label  # quarter resolution, one channel


def to_clip(blob, size, dtype=torch.float32):
    """uint8 (B, T, h, w) -> (B, 3, T, size, size), normalised."""
    b, t = blob.shape[:2]
    x = F.interpolate(blob.flatten(0, 1).unsqueeze(1).to(dtype) / 255, size=(size, size), mode="bilinear", align_corners=False)
    x = (x - 0.45) / 0.225
    return x.view(b, 1, t, size, size).expand(-1, 3, -1, -1, -1)


def mixup(x, y, classes, alpha):
    lam = torch.distributions.Beta(alpha, alpha).sample().item()
    perm = torch.randperm(len(x), device=x.device)
    target = F.one_hot(y, classes).float()
    return lam * x + (1 - lam) * x[perm], lam * target + (1 - lam) * target[perm]


def param_groups(model, wd):
    skip = [p for n, p in model.named_parameters() if p.ndim <= 1 or "rel_pos" in n or "class_token" in n]
    ids = {id(p) for p in skip}
    return [{"params": [p for p in model.parameters() if id(p) not in ids], "weight_decay": wd}, {"params": skip, "weight_decay": 0.0}]


@torch.inference_mode()
def evaluate(model, loader, frames, size, device):
    model.eval()
    good = total = 0
    for blob, label in loader:
        blob, label = blob.to(device), label.to(device)
        offsets = torch.linspace(0, blob.shape[1] - frames, 3).long().tolist()
        probs = 0
        for o in offsets:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                probs = probs + model(to_clip(blob[:, o: o + frames], size)).softmax(-1).float()
        good += (probs.argmax(-1) == label).sum().item()
        total += len(label)
    model.train()
    return good / total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--classes", type=int, default=31)
    ap.add_argument("--batch", type=int, default=9)
    ap.add_argument("--accumulate", type=int, default=2)
    ap.add_argument("--clips", type=int, default=240)
    ap.add_argument("--lr", type=float, default=3e-4)
    args = ap.parse_args()
    torch.manual_seed(2024)
    device = "cuda"
    model = mvit_v2_s(weights=None, num_classes=args.classes, stochastic_depth_prob=0.1).to(device).train()
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")
    opt = torch.optim.AdamW(param_groups(model, 0.05), lr=args.lr, betas=(0.9, 0.95), fused=True)
    train = DataLoader(MovingBlobs(args.clips, FRAMES, SIZE, args.classes, 1), args.batch, shuffle=True, num_workers=2, pin_memory=True)
    valid = DataLoader(MovingBlobs(32, FRAMES + 8, SIZE, args.classes, 2), batch_size=8)
    updates = -(-len(train) // args.accumulate)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, updates, eta_min=1e-6)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.05)

    t0, running = time.time(), 0.0
    for k, (blob, label) in enumerate(train, 1):
        x, y = mixup(to_clip(blob.to(device, non_blocking=True), SIZE), label.to(device), args.classes, 0.8)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = criterion(model(x), y)
        (loss / args.accumulate).backward()
        running += loss.item()
        if k % args.accumulate == 0 or k == len(train):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
            sched.step()
        if k % 6 == 0:
            print(f"batch {k}/{len(train)} loss {running / k:.4f} {time.time() - t0:.1f} s", flush=True)
    print(f"accuracy with three crops {evaluate(model, valid, FRAMES, SIZE, device):.4f}")
    with tempfile.TemporaryDirectory() as tmp:
        torch.save(model.state_dict(), os.path.join(tmp, "mvit.pth"))


if __name__ == "__main__":
    main()
