"""RegNetY classification from scratch, fp32 with PyTorch's default TF32 settings, progressive image sizes."""
import argparse
import os
import tempfile
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision import models, transforms


def build_data(n, classes, side, seed):
    """uint8 images kept in host memory; classes differ by channel means."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=g)
    x = torch.randint(0, 160, (n, 3, side, side), dtype=torch.uint8, generator=g)
    shift = torch.stack([(y * 7) % 90, (y * 13) % 90, (y * 29) % 90], 1).to(torch.uint8)
    x += shift[:, :, None, None]
    return TensorDataset(x, y)


class AverageMeter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.total += value * n
        self.count += n

    @property
    def avg(self):
        return self.total / max(1, self.count)


def split_decay(model):
    norm, other = [], []
    for m in model.modules():
        target = norm if isinstance(m, nn.BatchNorm2d) else other
        target.extend(m.parameters(recurse=False))
    return norm, other


def train_epoch(model, loader, criterion, optimizer, scheduler, side, epoch):
    model.train()
    augment = transforms.Compose([
        transforms.ConvertImageDtype(torch.float),
        transforms.RandomResizedCrop(side, scale=(0.5, 1.0), antialias=True),
        transforms.RandomHorizontalFlip(),
        transforms.Normalize((0.45, 0.45, 0.45), (0.22, 0.22, 0.22)),
    ])
    losses, t0 = AverageMeter(), time.time()
    for x, y in loader:
        x = augment(x.cuda(non_blocking=True))
        y = y.cuda(non_blocking=True)
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        scheduler.step()
        losses.update(loss.item(), y.size(0))
    print(f"epoch {epoch} side {side} loss {losses.avg:.4f} {losses.count / (time.time() - t0):.0f} img/s", flush=True)


def evaluate(model, loader, side):
    model.eval()
    prep = transforms.Compose([
        transforms.ConvertImageDtype(torch.float),
        transforms.Resize(side, antialias=True),
        transforms.Normalize((0.45, 0.45, 0.45), (0.22, 0.22, 0.22)),
    ])
    top1, top5 = AverageMeter(), AverageMeter()
    with torch.inference_mode():
        for x, y in loader:
            logits = model(prep(x.cuda()))
            y = y.cuda()
            rank = logits.topk(5, dim=1).indices
            top1.update((rank[:, 0] == y).float().mean().item(), y.numel())
            top5.update((rank == y[:, None]).any(1).float().mean().item(), y.numel())
    print(f"  eval top1 {100 * top1.avg:.2f} top5 {100 * top5.avg:.2f}", flush=True)
    return top1.avg


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--arch", default="regnet_y_1_6gf")
    ap.add_argument("--classes", type=int, default=60)
    ap.add_argument("--batch", type=int, default=60)
    ap.add_argument("--stored", type=int, default=232)
    ap.add_argument("--sides", type=int, nargs="+", default=[144, 184, 216])
    ap.add_argument("--eval-side", type=int, default=248)
    ap.add_argument("--images", type=int, default=1260)
    ap.add_argument("--lr", type=float, default=0.15)
    ap.add_argument("--wd", type=float, default=5e-5)
    args = ap.parse_args()
    torch.manual_seed(11)

    model = getattr(models, args.arch)(weights=None, num_classes=args.classes).cuda()
    norm, other = split_decay(model)
    optimizer = torch.optim.SGD([{"params": norm, "weight_decay": 0.0}, {"params": other, "weight_decay": args.wd}],
                                lr=args.lr, momentum=0.9, nesterov=True)
    train = DataLoader(build_data(args.images, args.classes, args.stored, 0), args.batch, shuffle=True,
                       pin_memory=True)   # the last batch of an epoch may be smaller
    valid = DataLoader(build_data(300, args.classes, args.stored, 1), 75)
    total = len(train) * len(args.sides)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=max(1, total // 8))
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total)
    scheduler = torch.optim.lr_scheduler.ChainedScheduler([warm, cosine])
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    with tempfile.TemporaryDirectory() as folder:
        best = -1.0
        for epoch, side in enumerate(args.sides):
            train_epoch(model, train, criterion, optimizer, scheduler, side, epoch)
            acc = evaluate(model, valid, args.eval_side)
            if acc > best:
                best = acc
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
                           os.path.join(folder, "best.pth"))
    print(f"best top1 {best:.4f}; peak reserved {torch.cuda.max_memory_reserved() >> 20} MiB")


if __name__ == "__main__":
    main()
