"""EfficientNet-style classifier with progressive resizing; depthwise convolutions, channels-last, bf16 autocast."""
import argparse
import math
import os
import tempfile
from itertools import islice

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

# expansion, channels, repeats, stride, kernel
STAGES = [
    (1, 24, 2, 1, 3),
    (4, 40, 3, 2, 3),
    (6, 56, 3, 2, 5),
    (6, 104, 4, 2, 3),
    (6, 136, 4, 1, 5),
    (6, 232, 5, 2, 5),
    (6, 384, 2, 1, 3),
]


class Patterns(IterableDataset):
    """Class-dependent stripes with noise."""

    def __init__(self, classes, size, seed):
        self.classes, self.size, self.seed = classes, size, seed

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        axis = torch.linspace(0, 6.28, self.size)
        noise = torch.randn(3, self.size * 2, self.size, generator=g) * 0.5
        while True:
            label = int(torch.randint(self.classes, (1,), generator=g))
            shift = int(torch.randint(self.size, (1,), generator=g))
            wave = torch.sin(axis * (1 + label % 10))[None, :, None] + torch.cos(axis * (1 + label // 10))[None, None, :]
            yield wave + noise[:, shift:shift + self.size], label


class ConvBN(nn.Sequential):
    def __init__(self, cin, cout, k=1, s=1, groups=1, act=True):
        layers = [nn.Conv2d(cin, cout, k, s, k // 2, groups=groups, bias=False), nn.BatchNorm2d(cout, momentum=0.01, eps=1e-3)]
        if act:
            layers.append(nn.SiLU(inplace=True))
        super().__init__(*layers)


class SqueezeExcite(nn.Module):
    def __init__(self, channels, squeezed):
        super().__init__()
        self.reduce = nn.Conv2d(channels, squeezed, 1)
        self.expand = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x):
        s = x.mean((2, 3), keepdim=True)
        return x * torch.sigmoid(self.expand(F.silu(self.reduce(s))))


class MBConv(nn.Module):
    def __init__(self, cin, cout, expansion, k, s, survival):
        super().__init__()
        mid = cin * expansion
        parts = [ConvBN(cin, mid)] if expansion > 1 else []
        parts += [ConvBN(mid, mid, k, s, groups=mid), SqueezeExcite(mid, max(1, cin // 4)), ConvBN(mid, cout, act=False)]
        self.body = nn.Sequential(*parts)
        self.residual = s == 1 and cin == cout
        self.survival = survival

    def forward(self, x):
        y = self.body(x)
        if not self.residual:
            return y
        if self.training and self.survival < 1:
            mask = torch.rand(x.size(0), 1, 1, 1, device=x.device) < self.survival
            y = y * mask.to(y.dtype) / self.survival
        return x + y


class Net(nn.Module):
    def __init__(self, classes, width=1.0):
        super().__init__()
        def ch(c):
            return max(8, int(c * width + 4) // 8 * 8)
        c = ch(32)
        self.stem = ConvBN(3, c, 3, 2)
        total, done, blocks = sum(s[2] for s in STAGES), 0, []
        for e, out, n, s, k in STAGES:
            for i in range(n):
                blocks.append(MBConv(c, ch(out), e, k, s if i == 0 else 1, 1 - 0.2 * done / total))
                c, done = ch(out), done + 1
        self.blocks = nn.Sequential(*blocks)
        self.head = ConvBN(c, 4 * c)
        self.classifier = nn.Sequential(nn.Dropout(0.3), nn.Linear(4 * c, classes))
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out")

    def forward(self, x):
        x = self.head(self.blocks(self.stem(x)))
        return self.classifier(x.mean((2, 3)))


def run_epoch(model, loader, steps, device, optimizer=None, scheduler=None):
    training = optimizer is not None
    model.train(training)
    loss_sum = correct = seen = 0.0
    with torch.set_grad_enabled(training):
        for images, labels in islice(loader, steps):
            images = images.to(device, memory_format=torch.channels_last, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
                logits = model(images)
                loss = F.cross_entropy(logits, labels, label_smoothing=0.1)
            if training:
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
                scheduler.step()
            loss_sum += loss.item() * len(labels)
            correct += (logits.argmax(1) == labels).sum().item()
            seen += len(labels)
    return loss_sum / seen, correct / seen


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--classes", type=int, default=100)
    ap.add_argument("--width", type=float, default=1.0)
    ap.add_argument("--batch-size", type=int, default=60)
    ap.add_argument("--sizes", type=int, nargs="+", default=[160, 192, 224])
    ap.add_argument("--steps", type=int, default=14, help="steps for each image size")
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()

    torch.manual_seed(31)
    device = torch.device("cuda")
    model = Net(args.classes, args.width).to(device, memory_format=torch.channels_last)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters")
    optimizer = torch.optim.RMSprop(model.parameters(), lr=args.lr, alpha=0.9, momentum=0.9, eps=1e-3, weight_decay=1e-5)
    total = args.steps * len(args.sizes)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1, (s + 1) / 8) * (0.5 + 0.5 * math.cos(math.pi * s / total)))
    test = DataLoader(Patterns(args.classes, args.sizes[-1] + 32, seed=77), batch_size=args.batch_size)

    with tempfile.TemporaryDirectory() as folder:
        for epoch, size in enumerate(args.sizes):
            loader = DataLoader(Patterns(args.classes, size, seed=epoch), batch_size=args.batch_size)
            loss, acc = run_epoch(model, loader, args.steps, device, optimizer, scheduler)
            test_loss, test_acc = run_epoch(model, test, 4, device)
            print(f"size {size}: train {loss:.4f}/{acc:.3f} test {test_loss:.4f}/{test_acc:.3f}")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, os.path.join(folder, f"{epoch}.pt"))


if __name__ == "__main__":
    main()
