# RegNetY classifier with fp16 autocast and gradient scaling, multi-label chest-film style targets.
import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import regnet_y_1_6gf, regnet_y_3_2gf

ARCHS = {"regnet_y_1_6gf": regnet_y_1_6gf, "regnet_y_3_2gf": regnet_y_3_2gf}


class Films(Dataset):
    def __init__(self, n, height, width, labels, seed):
        gen = torch.Generator().manual_seed(seed)
        self.pool = torch.rand(40, 1, height, width, generator=gen)
        self.targets = (torch.rand(n, labels, generator=gen) < 0.15).float()

    def __len__(self):
        return self.targets.size(0)

    def __getitem__(self, idx):
        target = self.targets[idx]
        img = self.pool[idx % self.pool.size(0)]
        img = img + 0.2 * target.sum()
        return img.expand(3, -1, -1).contiguous(), target


def make_optimizer(model, lr, wd):
    norm, rest = [], []
    for mod in model.modules():
        bucket = norm if isinstance(mod, nn.BatchNorm2d) else rest
        bucket.extend(p for p in mod.parameters(recurse=False))
    return torch.optim.SGD(
        [{"params": rest, "weight_decay": wd}, {"params": norm, "weight_decay": 0.0}],
        lr=lr, momentum=0.9, nesterov=True,
    )


def train_epoch(model, loader, criterion, opt, scaler, sched, device, epoch):
    model.train()
    total = torch.zeros((), device=device)
    for i, (x, y) in enumerate(loader):
        x = x.to(device, non_blocking=True)
        y = y.to(device, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16):
            out = model(x)
            loss = criterion(out, y)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        scaler.step(opt)
        scaler.update()
        sched.step()
        total += loss.detach()
        if i % 8 == 0:
            print(f"epoch {epoch} it {i} loss {loss.item():.4f} scale {scaler.get_scale():.0f}")
    return (total / len(loader)).item()


@torch.no_grad()
def validate(model, loader, criterion, device):
    model.eval()
    probs, targets, loss = [], [], 0.0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        with torch.autocast("cuda", dtype=torch.float16):
            out = model(x)
        loss += criterion(out.float(), y).item()
        probs.append(out.float().sigmoid())
        targets.append(y)
    probs, targets = torch.cat(probs), torch.cat(targets)
    hit = ((probs > 0.5) == (targets > 0.5)).float().mean().item()
    return loss / len(loader), hit


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--arch", choices=sorted(ARCHS), default="regnet_y_3_2gf")
    parser.add_argument("--labels", type=int, default=14)
    parser.add_argument("--batch-size", type=int, default=46)
    parser.add_argument("--height", type=int, default=260)
    parser.add_argument("--width", type=int, default=212)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--train-items", type=int, default=1160)
    parser.add_argument("--val-items", type=int, default=200)
    parser.add_argument("--lr", type=float, default=0.04)
    args = parser.parse_args()

    torch.manual_seed(77)
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda")

    model = ARCHS[args.arch](weights=None)
    model.fc = nn.Sequential(nn.Dropout(0.2), nn.Linear(model.fc.in_features, args.labels))
    model.to(device)
    print(args.arch, sum(p.numel() for p in model.parameters()) // 1000, "k parameters")

    train = DataLoader(Films(args.train_items, args.height, args.width, args.labels, 1),
                       batch_size=args.batch_size, shuffle=True, num_workers=2,
                       pin_memory=True, persistent_workers=True)
    val = DataLoader(Films(args.val_items, args.height, args.width, args.labels, 2), batch_size=args.batch_size * 2)
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.full((args.labels,), 3.0, device=device))
    opt = make_optimizer(model, args.lr, 5e-5)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.05, total_iters=8)
    cos = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=max(1, args.epochs * len(train) - 8))
    sched = torch.optim.lr_scheduler.SequentialLR(opt, [warm, cos], milestones=[8])
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0 ** 12, growth_interval=200)

    best = float("inf")
    with tempfile.TemporaryDirectory() as tmp:
        for epoch in range(args.epochs):
            tr = train_epoch(model, train, criterion, opt, scaler, sched, device, epoch)
            va, hit = validate(model, val, criterion, device)
            print(f"epoch {epoch}: train {tr:.4f} val {va:.4f} label accuracy {hit:.3f}")
            if va < best:
                best = va
                torch.save({"model": model.state_dict(), "scaler": scaler.state_dict(), "epoch": epoch},
                           Path(tmp) / "best.pth")


if __name__ == "__main__":
    main()
