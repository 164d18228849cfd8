"""Image classification with EfficientNetV2-S: progressive resizing, channels_last, fp16 with GradScaler, RMSprop, EMA of weights.

Resolution, batch size and dropout change from stage to stage, as in the paper on EfficientNetV2.
"""
import argparse
import os
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import efficientnet_v2_s


class Gratings(Dataset):
    """Low-resolution uint8 textures; the class sets frequency and colour."""

    def __init__(self, n, classes, seed, base=64):
        self.n, self.classes, self.seed = n, classes, seed
        axis = torch.linspace(0, 6.283, base)
        self.yy, self.xx = torch.meshgrid(axis, axis, indexing="ij")

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 9973 + i)
        c = int(torch.randint(0, self.classes, (1,), generator=g))
        phase = torch.rand(3, 1, 1, generator=g) * 6.283
        wave = torch.sin(self.xx * (1 + c % 9) + self.yy * (1 + c // 9) + phase)
        return ((wave + 1) * 127.5).to(torch.uint8), c


def prepare(images, size):
    x = F.interpolate(images.float(), size=(size, size), mode="bicubic", align_corners=False, antialias=False)
    return ((x - 127.5) / 64.0).contiguous(memory_format=torch.channels_last)


def random_erase(x, share=0.25):
    h = w = int(x.shape[-1] * share)
    top, left = (int(torch.randint(0, x.shape[-1] - h, (1,))) for _ in range(2))
    x[:, :, top: top + h, left: left + w] = 0
    return x


def set_dropout(model, p):
    for m in model.modules():
        if isinstance(m, nn.Dropout):
            m.p = p


@torch.no_grad()
def accuracy(model, loader, size, device):
    model.eval()
    top1 = top5 = total = 0
    for images, label in loader:
        label = label.to(device)
        with torch.autocast("cuda", dtype=torch.float16):
            x = prepare(images.to(device), size)
            out = model(x) + model(x.flip(-1))
        best = out.topk(5, dim=-1).indices
        top1 += (best[:, 0] == label).sum().item()
        top5 += (best == label.unsqueeze(-1)).any(-1).sum().item()
        total += len(label)
    return top1 / total, top5 / total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--classes", type=int, default=81)
    ap.add_argument("--sizes", type=int, nargs="+", default=[128, 172, 220])
    ap.add_argument("--batches", type=int, nargs="+", default=[150, 96, 60])
    ap.add_argument("--dropouts", type=float, nargs="+", default=[0.1, 0.2, 0.3])
    ap.add_argument("--steps-per-stage", type=int, default=22)
    ap.add_argument("--valid", type=int, default=240)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    torch.manual_seed(17)
    torch.backends.cudnn.allow_tf32 = True
    device = torch.device("cuda")

    model = efficientnet_v2_s(weights=None, num_classes=args.classes).to(device, memory_format=torch.channels_last)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98), use_buffers=True)
    opt = torch.optim.RMSprop(model.parameters(), lr=args.lr, alpha=0.9, momentum=0.9, eps=1e-3, weight_decay=1e-5)
    scaler = torch.amp.GradScaler("cuda")
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    total = args.steps_per_stage * len(args.sizes)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 10) * 0.97 ** (s / total * 30))
    valid = DataLoader(Gratings(args.valid, args.classes, 2), batch_size=80)

    folder = tempfile.mkdtemp(prefix="effnet_")
    for stage, (size, batch, drop) in enumerate(zip(args.sizes, args.batches, args.dropouts)):
        set_dropout(model, drop)
        loader = DataLoader(Gratings(batch * args.steps_per_stage, args.classes, 10 + stage), batch, num_workers=2, pin_memory=True)
        model.train()
        t0, running, skipped = time.time(), 0.0, 0
        for images, label in loader:
            x = random_erase(prepare(images.to(device, non_blocking=True), size))
            label = label.to(device, non_blocking=True)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = criterion(model(x), label)
            opt.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            before = scaler.get_scale()
            scaler.step(opt)
            scaler.update()
            skipped += scaler.get_scale() < before
            sched.step()
            ema.update_parameters(model)
            running += loss.detach()
        top1, top5 = accuracy(ema.module, valid, size + 20, device)
        print(f"stage {stage}: {size} px, batch {batch}, loss {(running / len(loader)).item():.4f}, skipped {skipped}, "
              f"EMA top-1 {top1:.4f} top-5 {top5:.4f}, {time.time() - t0:.1f} s", flush=True)
        torch.save({"model": model.state_dict(), "ema": ema.state_dict(), "opt": opt.state_dict(), "scaler": scaler.state_dict()},
                   os.path.join(folder, f"stage{stage}.pt"))


if __name__ == "__main__":
    main()
