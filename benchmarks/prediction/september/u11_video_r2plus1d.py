"""Action recognition with a hand-written R(2+1)D network and attention pooling over time."""
import argparse
import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.backends.cudnn.benchmark = True


class MovingDots(Dataset):
    """A bright block moves in one of several directions at one of several speeds."""

    def __init__(self, n, frames, side, classes, seed):
        self.n, self.frames, self.side, self.classes, self.seed = n, frames, side, classes, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + i)
        y = int(torch.randint(self.classes, (1,), generator=g))
        clip = torch.randint(0, 60, (3, 1, self.side, self.side), generator=g, dtype=torch.uint8)
        clip = clip.repeat(1, self.frames, 1, 1)
        angle = torch.tensor(6.2832 * y / self.classes)
        pos = torch.rand(2, generator=g) * self.side
        for t in range(self.frames):
            cy = int(pos[0] + 3 * t * angle.sin()) % (self.side - 12)
            cx = int(pos[1] + 3 * t * angle.cos()) % (self.side - 12)
            clip[:, t, cy:cy + 12, cx:cx + 12] = 230
        return clip, y


def conv2plus1(cin, cout, stride=1):
    mid = (cin * cout * 27) // (cin * 9 + 3 * cout)
    return nn.Sequential(
        nn.Conv3d(cin, mid, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False), nn.BatchNorm3d(mid),
        nn.ReLU(inplace=True),
        nn.Conv3d(mid, cout, (3, 1, 1), (stride, 1, 1), (1, 0, 0), bias=False))


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1, self.bn1 = conv2plus1(cin, cout, stride), nn.BatchNorm3d(cout)
        self.conv2, self.bn2 = conv2plus1(cout, cout), nn.BatchNorm3d(cout)
        self.act = nn.ReLU(inplace=True)
        self.short = nn.Identity()
        if stride != 1 or cin != cout:
            self.short = nn.Sequential(nn.Conv3d(cin, cout, 1, stride, bias=False), nn.BatchNorm3d(cout))

    def forward(self, x):
        out = self.act(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.act(out + self.short(x))


class VideoNet(nn.Module):
    def __init__(self, classes, widths=(56, 112, 224, 384), depth=2):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv3d(3, 45, (1, 7, 7), (1, 2, 2), (0, 3, 3), bias=False), nn.BatchNorm3d(45), nn.ReLU(inplace=True),
            nn.Conv3d(45, widths[0], (3, 1, 1), 1, (1, 0, 0), bias=False), nn.BatchNorm3d(widths[0]),
            nn.ReLU(inplace=True))
        layers, c = [], widths[0]
        for k, w in enumerate(widths):
            for d in range(depth):
                layers.append(Block(c, w, 2 if d == 0 and k > 0 else 1))
                c = w
        self.body = nn.Sequential(*layers)
        self.pool = nn.MultiheadAttention(c, 8, batch_first=True)
        self.query = nn.Parameter(torch.randn(1, 1, c) * 0.02)
        self.head = nn.Sequential(nn.LayerNorm(c), nn.Dropout(0.3), nn.Linear(c, classes))

    def forward(self, x):
        x = self.body(self.stem(x)).mean((3, 4)).transpose(1, 2)
        pooled, _ = self.pool(self.query.expand(x.size(0), -1, -1), x, x, need_weights=False)
        return self.head(pooled[:, 0])


def prepare(clip, device):
    return clip.to(device, non_blocking=True).float().div_(255).sub_(0.4).div_(0.22)


@torch.no_grad()
def test(model, loader, device):
    """Average the logits of the clip and its mirrored copy."""
    model.eval()
    right = total = 0
    for clip, y in loader:
        x = prepare(clip, device)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(x) + model(x.flip(-1))
        right += (logits.argmax(1).cpu() == y).sum().item()
        total += len(y)
    return right / total


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--classes", type=int, default=24)
    p.add_argument("--frames", type=int, default=14)
    p.add_argument("--side", type=int, default=120)
    p.add_argument("--batch", type=int, default=18)
    p.add_argument("--clips", type=int, default=540)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--lr", type=float, default=3e-4)
    args = p.parse_args()
    torch.manual_seed(42)
    device = torch.device("cuda")

    net = VideoNet(args.classes).to(device)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=0.02)
    train = DataLoader(MovingDots(args.clips, args.frames, args.side, args.classes, 0), args.batch, shuffle=True,
                       num_workers=2, pin_memory=True, drop_last=True)
    valid = DataLoader(MovingDots(60, args.frames + 4, args.side, args.classes, 9000), 20)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=args.lr, epochs=args.epochs, steps_per_epoch=len(train))
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)

    with tempfile.TemporaryDirectory() as tmp:
        for epoch in range(args.epochs):
            net.train()
            running = 0.0
            for i, (clip, y) in enumerate(train):
                x, y = prepare(clip, device), y.to(device)
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = loss_fn(net(x), y)
                loss.backward()
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                opt.step()
                sched.step()
                opt.zero_grad(set_to_none=True)
                running += loss.item()
            print(f"epoch {epoch} loss {running / len(train):.3f} accuracy {test(net, valid, device):.3f}", flush=True)
            torch.save(net.state_dict(), os.path.join(tmp, "last.pt"))


if __name__ == "__main__":
    main()
