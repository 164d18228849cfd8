"""ResNet-50 on synthetic 80-class images: channels_last, bf16 autocast, SGD with Nesterov momentum, EMA of weights."""
import argparse
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet50

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)


class BankDataset(Dataset):
    """uint8 pictures held in memory; random crop and flip on the CPU."""

    def __init__(self, n, size, n_classes, seed, train):
        rng = np.random.default_rng(seed)
        self.pad = 16 if train else 0
        self.size, self.train, self.n = size, train, n
        small = rng.integers(0, 256, size=(96, 3, 16, 16), dtype=np.uint8)
        reps = -(-(size + self.pad) // 16)
        self.bank = torch.from_numpy(small).repeat_interleave(reps, 2).repeat_interleave(reps, 3)
        self.labels = rng.integers(0, n_classes, size=n)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        img = self.bank[i % len(self.bank)]
        if self.train:
            top, left = torch.randint(0, self.pad + 1, (2,)).tolist()
        else:
            top = left = 0
        img = img[:, top:top + self.size, left:left + self.size]
        if self.train and torch.rand(()) < 0.5:
            img = img.flip(-1)
        return img.contiguous(), int(self.labels[i])


def prepare(x, mean, std):
    x = x.to("cuda", non_blocking=True).to(memory_format=torch.channels_last)
    return x.float().div_(255).sub_(mean).div_(std)


def split_decay(model):
    norm_and_bias, weights = [], []
    for m in model.modules():
        for name, p in m.named_parameters(recurse=False):
            (norm_and_bias if isinstance(m, nn.BatchNorm2d) or name == "bias" else weights).append(p)
    return weights, norm_and_bias


@torch.no_grad()
def validate(model, loader, mean, std):
    model.eval()
    top1 = top5 = n = 0
    for x, y in loader:
        y = y.to("cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = model(prepare(x, mean, std))
        top = out.topk(5, dim=1).indices.eq(y[:, None])
        top1 += top[:, 0].sum().item()
        top5 += top.sum().item()
        n += len(y)
    return top1 / n, top5 / n


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--size", type=int, default=208)
    ap.add_argument("--val-size", type=int, default=256)
    ap.add_argument("--batch-size", type=int, default=88)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--train-images", type=int, default=88 * 15)
    ap.add_argument("--val-images", type=int, default=300)
    ap.add_argument("--classes", type=int, default=80)
    ap.add_argument("--lr", type=float, default=0.2)
    ap.add_argument("--ema", type=float, default=0.99)
    args = ap.parse_args()

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = False
    mean, std = MEAN.to("cuda"), STD.to("cuda")

    model = resnet50(weights=None, num_classes=args.classes, zero_init_residual=True)
    model = model.to("cuda", memory_format=torch.channels_last)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(args.ema), use_buffers=True)

    train = DataLoader(BankDataset(args.train_images, args.size, args.classes, 1, True), args.batch_size,
                       shuffle=True, drop_last=True, num_workers=2, pin_memory=True, persistent_workers=True)
    val = DataLoader(BankDataset(args.val_images, args.val_size, args.classes, 2, False), 100)

    weights, rest = split_decay(model)
    opt = torch.optim.SGD([{"params": weights, "weight_decay": 5e-5}, {"params": rest, "weight_decay": 0.0}],
                          lr=args.lr, momentum=0.9, nesterov=True)
    total = args.epochs * len(train)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.05, total_iters=5)
    cos = torch.optim.lr_scheduler.CosineAnnealingLR(opt, max(1, total - 5))
    sched = torch.optim.lr_scheduler.SequentialLR(opt, [warm, cos], milestones=[5])
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    ckpt = os.path.join(tempfile.mkdtemp(), "checkpoint.pth")
    for epoch in range(args.epochs):
        model.train()
        start = time.time()
        for i, (x, y) in enumerate(train):
            x, y = prepare(x, mean, std), y.to("cuda", non_blocking=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = criterion(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            sched.step()
            ema.update_parameters(model)
            if i % 5 == 0:
                print(f"epoch {epoch} iter {i} loss {loss.item():.4f} lr {opt.param_groups[0]['lr']:.4f}")
        rate = len(train) * args.batch_size / (time.time() - start)
        t1, t5 = validate(model, val, mean, std)
        e1, e5 = validate(ema, val, mean, std)
        print(f"epoch {epoch}: {rate:.0f} img/s, top1/top5 {t1:.3f}/{t5:.3f}, ema {e1:.3f}/{e5:.3f}")
        torch.save({"model": model.state_dict(), "ema": ema.state_dict(), "opt": opt.state_dict(),
                    "epoch": epoch}, ckpt)


if __name__ == "__main__":
    main()
