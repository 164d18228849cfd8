"""FCOS on aerial pictures of small objects: pictures of unlike sizes, multi-scale training, fp16 with a gradient scaler."""
import argparse
import os
import tempfile
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection import fcos_resnet50_fpn
from torchvision.ops import box_iou

CLASSES = ["__bg__", "car", "van", "truck", "bus", "person", "bicycle", "tricycle", "boat", "tent"]
SIZES = [(427, 640), (480, 612), (540, 720), (405, 720), (600, 600)]


class AerialDataset(Dataset):
    """Coloured rectangles over a noisy ground; a fixed seed for every index."""

    def __init__(self, length, seed):
        self.length, self.seed = length, seed

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        rng = np.random.default_rng(self.seed * 100003 + i)
        h, w = SIZES[rng.integers(len(SIZES))]
        img = np.repeat(rng.random((1, h // 3, w // 3), dtype=np.float32), 3, 0) * 0.3 + 0.35
        img = img.repeat(3, 1).repeat(3, 2)
        img = np.pad(img, ((0, 0), (0, h - img.shape[1]), (0, w - img.shape[2])), mode="edge")
        boxes, labels = [], []
        for _ in range(int(rng.integers(4, 40))):
            bw, bh = rng.integers(10, 90, 2)
            x, y = int(rng.integers(0, w - bw)), int(rng.integers(0, h - bh))
            c = int(rng.integers(1, len(CLASSES)))
            img[:, y:y + bh, x:x + bw] = np.array([c / 10, 1 - c / 10, (c * 37 % 10) / 10], np.float32)[:, None, None]
            boxes.append([x, y, x + int(bw), y + int(bh)])
            labels.append(c)
        target = {"boxes": torch.tensor(boxes, dtype=torch.float32), "labels": torch.tensor(labels), "image_id": i}
        return torch.from_numpy(np.ascontiguousarray(img)), target


def collate(batch):
    return [b[0] for b in batch], [b[1] for b in batch]


def to_device(images, targets, device):
    images = [im.to(device, non_blocking=True) for im in images]
    targets = [{k: v.to(device, non_blocking=True) if torch.is_tensor(v) else v for k, v in t.items()} for t in targets]
    return images, targets


def train_one_epoch(model, loader, optimizer, scheduler, scaler, args, epoch):
    model.train()
    for step, (images, targets) in enumerate(loader):
        images, targets = to_device(images, targets, args.device)
        with torch.autocast(args.device, dtype=torch.float16):
            losses = model(images, targets)
            loss = sum(losses.values())
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        if step % args.log_every == 0:
            parts = " ".join(f"{k}={v.item():.3f}" for k, v in losses.items())
            print(f"epoch {epoch} step {step} loss {loss.item():.3f} {parts} lr {scheduler.get_last_lr()[0]:.5f}")


@torch.no_grad()
def evaluate(model, loader, args):
    model.eval()
    found, total, kept = 0, 0, 0
    for images, targets in loader:
        images, targets = to_device(images, targets, args.device)
        with torch.autocast(args.device, dtype=torch.float16):
            outputs = model(images)
        for out, t in zip(outputs, targets):
            total += len(t["boxes"])
            kept += len(out["boxes"])
            if len(out["boxes"]):
                found += int((box_iou(t["boxes"], out["boxes"].float()).amax(1) > 0.5).sum())
    return found / max(total, 1), kept


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--train-images", type=int, default=96)
    p.add_argument("--val-images", type=int, default=18)
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--clip", type=float, default=5.0)
    p.add_argument("--log-every", type=int, default=4)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--device", default="cuda")
    args = p.parse_args()
    torch.manual_seed(31)

    model = fcos_resnet50_fpn(weights=None, weights_backbone=None, num_classes=len(CLASSES),
                              min_size=(448, 496, 560), max_size=800, detections_per_img=150).to(args.device)
    train = DataLoader(AerialDataset(args.train_images, 1), args.batch_size, shuffle=True, num_workers=args.workers,
                       collate_fn=collate, drop_last=True, pin_memory=True)
    val = DataLoader(AerialDataset(args.val_images, 2), 4, num_workers=0, collate_fn=collate)

    decay = [q for q in model.parameters() if q.requires_grad and q.ndim > 1]
    rest = [q for q in model.parameters() if q.requires_grad and q.ndim <= 1]
    optimizer = torch.optim.SGD([{"params": decay, "weight_decay": 1e-4}, {"params": rest, "weight_decay": 0.0}],
                                lr=args.lr, momentum=0.9)
    total = args.epochs * len(train)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=max(total // 6, 1))
    decay_lr = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, decay_lr], [max(total // 6, 1)])
    scaler = torch.amp.GradScaler(args.device, init_scale=1024.0)

    start = time.time()
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(args.epochs):
            train_one_epoch(model, train, optimizer, scheduler, scaler, args, epoch)
            recall, kept = evaluate(model, val, args)
            print(f"epoch {epoch}: recall@0.5 {recall:.4f} with {kept} boxes, {time.time() - start:.1f}s")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
                       os.path.join(folder, "last.pt"))
    print("finished")


if __name__ == "__main__":
    main()
