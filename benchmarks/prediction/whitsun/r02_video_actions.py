#!/usr/bin/env python
# Action recognition on short clips with a factorised (2+1)D residual network.
import argparse
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    classes: int = 37
    frames: int = 17
    crop: int = 148
    width: int = 44
    depths: tuple = (2, 2, 3, 2)
    dropout: float = 0.3


class Conv2Plus1d(nn.Sequential):
    def __init__(self, cin, cout, stride=1):
        mid = (cin * cout * 27) // (cin * 9 + 3 * cout)
        super().__init__(
            nn.Conv3d(cin, mid, (1, 3, 3), stride=(1, stride, stride), padding=(0, 1, 1), bias=False),
            nn.BatchNorm3d(mid),
            nn.ReLU(inplace=True),
            nn.Conv3d(mid, cout, (3, 1, 1), stride=(stride, 1, 1), padding=(1, 0, 0), bias=False),
        )


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = Conv2Plus1d(cin, cout, stride)
        self.bn1 = nn.BatchNorm3d(cout)
        self.conv2 = Conv2Plus1d(cout, cout)
        self.bn2 = nn.BatchNorm3d(cout)
        self.short = None
        if stride != 1 or cin != cout:
            self.short = nn.Sequential(nn.Conv3d(cin, cout, 1, stride=stride, bias=False), nn.BatchNorm3d(cout))

    def forward(self, x):
        idt = x if self.short is None else self.short(x)
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        return F.relu(out + idt, inplace=True)


class VideoNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        w = cfg.width
        self.stem = nn.Sequential(
            nn.Conv3d(3, 45, (1, 7, 7), stride=(1, 2, 2), padding=(0, 3, 3), bias=False),
            nn.BatchNorm3d(45), nn.ReLU(inplace=True),
            nn.Conv3d(45, w, (3, 1, 1), padding=(1, 0, 0), bias=False),
            nn.BatchNorm3d(w), nn.ReLU(inplace=True))
        stages, cin = [], w
        for i, depth in enumerate(cfg.depths):
            cout = w * 2 ** i
            for j in range(depth):
                stages.append(Block(cin, cout, 2 if (i > 0 and j == 0) else 1))
                cin = cout
        self.stages = nn.Sequential(*stages)
        self.drop = nn.Dropout(cfg.dropout)
        self.fc = nn.Linear(cin, cfg.classes)

    def forward(self, x):
        x = self.stages(self.stem(x))
        return self.fc(self.drop(x.mean((2, 3, 4))))


class ClipBank:
    """A small pool of decoded clips held as uint8 in host memory; crops and flips are cut at fetch time."""

    def __init__(self, n, cfg, seed, source=176, extra_frames=7):
        g = torch.Generator().manual_seed(seed)
        t = cfg.frames + extra_frames
        self.cfg = cfg
        self.video = torch.randint(0, 256, (n, 3, t, source, source), dtype=torch.uint8, generator=g)
        self.label = torch.randint(cfg.classes, (n,), generator=g)
        for i, y in enumerate(self.label.tolist()):
            self.video[i, y % 3, :, y * 4: y * 4 + 12] //= 4
        self.gen = g

    def sample(self, batch, device):
        c = self.cfg
        idx = torch.randint(len(self.label), (batch,), generator=self.gen)
        _, _, t, h, w = self.video.shape
        out = torch.empty(batch, 3, c.frames, c.crop, c.crop, dtype=torch.uint8)
        for k, i in enumerate(idx.tolist()):
            t0, y0, x0 = (int(torch.randint(hi - lo + 1, (1,), generator=self.gen))
                          for hi, lo in ((t, c.frames), (h, c.crop), (w, c.crop)))
            out[k] = self.video[i, :, t0:t0 + c.frames, y0:y0 + c.crop, x0:x0 + c.crop]
        return out.to(device, non_blocking=True), self.label[idx].to(device)

    def views(self, i):
        c = self.cfg
        _, _, t, h, w = self.video.shape
        return torch.stack([self.video[i, :, a:a + c.frames, b:b + c.crop, b:b + c.crop]
                            for a in (0, t - c.frames) for b in (0, (h - c.crop) // 2, h - c.crop)])


def prepare(u8):
    x = u8.float().div_(255).sub_(0.45).div_(0.225)
    return x.contiguous(memory_format=torch.channels_last_3d)


def mixup(x, y, classes, alpha):
    lam = float(torch.distributions.Beta(alpha, alpha).sample())
    onehot = F.one_hot(y, classes).float()
    return x.lerp(x.flip(0), 1 - lam), onehot.lerp(onehot.flip(0), 1 - lam)


def run_epoch(net, bank, opt, sched, args, cfg, device):
    net.train()
    for step in range(args.steps):
        clips, y = bank.sample(args.batch, device)
        x, target = mixup(prepare(clips), y, cfg.classes, 0.4)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = net(x)
        loss = F.cross_entropy(logits.float(), target, label_smoothing=0.05)
        loss.backward()
        opt.step()
        opt.zero_grad()
        sched.step()
        if step % 25 == 0:
            print(f"  step {step:4d} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.4f}", flush=True)


def multi_view_test(net, bank, n, per, device):
    net.eval()
    right = 0
    with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16):
        for lo in range(0, n, per):
            ids = list(range(lo, min(lo + per, n)))
            views = torch.cat([bank.views(i) for i in ids]).to(device)
            prob = net(prepare(views)).softmax(-1).view(len(ids), -1, bank.cfg.classes).mean(1)
            right += (prob.argmax(-1).cpu() == bank.label[ids]).sum().item()
    return right / n


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--batch", type=int, default=14)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--steps", type=int, default=80)
    ap.add_argument("--clips", type=int, default=96)
    ap.add_argument("--test-clips", type=int, default=48)
    ap.add_argument("--test-batch", type=int, default=6)
    ap.add_argument("--crop", type=int, default=148)
    ap.add_argument("--width", type=int, default=44)
    args = ap.parse_args()
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = True
    device = torch.device(args.device)
    cfg = Config(crop=args.crop, width=args.width)
    bank = ClipBank(args.clips, cfg, seed=11)
    net = VideoNet(cfg).to(device).to(memory_format=torch.channels_last_3d)
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.04, total_steps=args.epochs * args.steps)
    for epoch in range(args.epochs):
        t = time.perf_counter()
        run_epoch(net, bank, opt, sched, args, cfg, device)
        acc = multi_view_test(net, bank, min(args.test_clips, args.clips), args.test_batch, device)
        print(f"epoch {epoch}: multi-view accuracy {acc:.3f}  {time.perf_counter() - t:.1f}s", flush=True)


if __name__ == "__main__":
    main()
