"""EfficientNetV2 image classification: RMSprop, weight EMA, mixup, channels-last bf16, progressive image size."""
import argparse
import os
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class GpuBatches:
    """Images kept as uint8 in pinned memory, decoded, flipped and cropped on the GPU."""

    def __init__(self, n, side, classes, batch, seed, train):
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, classes, (n,), generator=g)
        pattern = torch.rand(classes, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        base = F.interpolate(pattern[self.labels], size=side, mode="nearest")
        noise = torch.rand(n, 1, side, side, generator=g) * 0.5
        self.images = ((base * 0.5 + noise) * 255).to(torch.uint8)
        self.batch, self.train, self.g, self.side = batch, train, g, side
        self.mean = torch.tensor([0.485, 0.456, 0.406], device="cuda").view(1, 3, 1, 1)
        self.std = torch.tensor([0.229, 0.224, 0.225], device="cuda").view(1, 3, 1, 1)

    def batches(self, size):
        n = len(self.labels)
        order = torch.randperm(n, generator=self.g) if self.train else torch.arange(n)
        for a in range(0, n - (self.batch - 1 if self.train else 0), self.batch):
            idx = order[a:a + self.batch]
            x = self.images[idx].to("cuda", non_blocking=True).float().div_(255)
            y = self.labels[idx].to("cuda", non_blocking=True)
            if self.train:
                top, left = torch.randint(0, self.side // 8, (2,), generator=self.g).tolist()
                x = x[:, :, top:top + self.side * 7 // 8, left:left + self.side * 7 // 8]
                if torch.rand(1, generator=self.g) < 0.5:
                    x = x.flip(-1)
            x = F.interpolate(x, size=size, mode="bilinear", antialias=True)
            yield ((x - self.mean) / self.std).contiguous(memory_format=torch.channels_last), y


def mixup(x, y, classes, alpha):
    target = F.one_hot(y, classes).float()
    lam = float(torch.distributions.Beta(alpha, alpha).sample())
    perm = torch.randperm(len(x), device=x.device)
    return torch.lerp(x[perm], x, lam), torch.lerp(target[perm], target, lam)


@torch.no_grad()
def accuracy(net, data, size):
    net.eval()
    top1 = top5 = count = 0
    for x, y in data.batches(size):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = net(x)
        best = logits.float().topk(5, dim=1).indices == y[:, None]
        top1 += best[:, 0].sum().item()
        top5 += best.any(1).sum().item()
        count += len(y)
    return top1 / count, top5 / count


def no_decay_groups(net, weight_decay):
    plain = [p for p in net.parameters() if p.ndim > 1]
    small = [p for p in net.parameters() if p.ndim <= 1]
    return [{"params": plain, "weight_decay": weight_decay}, {"params": small, "weight_decay": 0.0}]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", default="efficientnet_v2_s")
    ap.add_argument("--classes", type=int, default=120)
    ap.add_argument("--batch", type=int, default=52)
    ap.add_argument("--sizes", type=int, nargs="+", default=[150, 190, 230])
    ap.add_argument("--eval-size", type=int, default=260)
    ap.add_argument("--eval-batch", type=int, default=70)
    ap.add_argument("--n-train", type=int, default=630)
    ap.add_argument("--n-val", type=int, default=280)
    ap.add_argument("--side", type=int, default=264)
    ap.add_argument("--lr", type=float, default=8e-4)
    ap.add_argument("--ema", type=float, default=0.98)
    ap.add_argument("--mixup", type=float, default=0.2)
    args = ap.parse_args()

    torch.manual_seed(2026)
    torch.backends.cudnn.benchmark = False
    net = getattr(torchvision.models, args.model)(weights=None, num_classes=args.classes, dropout=0.2)
    net = net.to(device="cuda", memory_format=torch.channels_last)
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(args.ema), use_buffers=True)
    train = GpuBatches(args.n_train, args.side, args.classes, args.batch, 1, train=True)
    val = GpuBatches(args.n_val, args.side, args.classes, args.eval_batch, 2, train=False)
    opt = torch.optim.RMSprop(no_decay_groups(net, 1e-5), lr=args.lr, alpha=0.9, momentum=0.9, eps=1e-3)
    steps = len(args.sizes) * (args.n_train // args.batch)
    warm = max(1, steps // 6)
    sched = torch.optim.lr_scheduler.SequentialLR(
        opt, [torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=warm),
              torch.optim.lr_scheduler.ExponentialLR(opt, 0.97)], milestones=[warm])

    for epoch, size in enumerate(args.sizes):
        net.train()
        start, total, n = time.time(), torch.zeros((), device="cuda"), 0
        for x, y in train.batches(size):
            x, target = mixup(x, y, args.classes, args.mixup)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.cross_entropy(net(x), target, label_smoothing=0.1)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            opt.step()
            sched.step()
            ema.update_parameters(net)
            total += loss.detach() * len(x)
            n += len(x)
        print(f"epoch {epoch} size {size}: loss {total.item() / n:.3f} ({n / (time.time() - start):.0f} images/s)")
    for name, m in (("raw", net), ("ema", ema)):
        top1, top5 = accuracy(m, val, args.eval_size)
        print(f"{name}: top-1 {top1:.3f} top-5 {top5:.3f}")
    with tempfile.TemporaryDirectory() as d:
        torch.save({"ema": ema.module.state_dict(), "args": vars(args)}, os.path.join(d, "effnet.pt"))


if __name__ == "__main__":
    main()
