"""Volumetric segmentation in the manner of nnU-Net: 3D U-Net, deep supervision, Dice + cross entropy, sliding windows."""
import argparse
import itertools
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class ConvBlock(nn.Sequential):
    def __init__(self, cin, cout, stride=1):
        super().__init__(
            nn.Conv3d(cin, cout, 3, stride=stride, padding=1, bias=False), nn.InstanceNorm3d(cout, affine=True),
            nn.LeakyReLU(0.01, inplace=True),
            nn.Conv3d(cout, cout, 3, padding=1, bias=False), nn.InstanceNorm3d(cout, affine=True),
            nn.LeakyReLU(0.01, inplace=True))


class UNet3D(nn.Module):
    def __init__(self, cin, classes, base, depth=5, cap=320):
        super().__init__()
        widths = [min(base * 2 ** i, cap) for i in range(depth)]
        self.down = nn.ModuleList(ConvBlock(cin if i == 0 else widths[i - 1], w, 1 if i == 0 else 2)
                                  for i, w in enumerate(widths))
        self.up = nn.ModuleList(nn.ConvTranspose3d(widths[i], widths[i - 1], 2, 2) for i in range(depth - 1, 0, -1))
        self.fuse = nn.ModuleList(ConvBlock(2 * widths[i - 1], widths[i - 1]) for i in range(depth - 1, 0, -1))
        self.heads = nn.ModuleList(nn.Conv3d(widths[i - 1], classes, 1) for i in range(depth - 1, 0, -1))

    def forward(self, x):
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
        outs = []
        for i, (up, fuse) in enumerate(zip(self.up, self.fuse)):
            x = fuse(torch.cat([up(x), skips[-2 - i]], 1))
            if self.training or i == len(self.up) - 1:
                outs.append(self.heads[i](x))
        return outs[::-1] if self.training else outs[-1]


class Phantom:
    """Ellipsoids of a few classes in a noisy four-channel volume."""

    def __init__(self, shape, classes, rng):
        grid = np.meshgrid(*[np.linspace(-1, 1, s, dtype=np.float32) for s in shape], indexing="ij")
        self.label = np.zeros(shape, np.uint8)
        for c in range(1, classes):
            centre, radius = rng.uniform(-0.5, 0.5, 3), rng.uniform(0.2, 0.5, 3)
            self.label[sum(((g - m) / r) ** 2 for g, m, r in zip(grid, centre, radius)) < 1] = c
        means = rng.normal(size=(4, classes)).astype(np.float32)
        self.image = means[:, self.label] + 0.5 * rng.standard_normal((4, *shape), dtype=np.float32)

    def crop(self, size, rng):
        at = [int(rng.integers(0, s - p + 1)) for s, p in zip(self.label.shape, size)]
        box = tuple(slice(a, a + p) for a, p in zip(at, size))
        flips = [a for a in range(3) if rng.random() < 0.5]
        return np.flip(self.image[(slice(None), *box)], [f + 1 for f in flips]).copy(), np.flip(self.label[box], flips).copy()


def dice_ce(logits, target):
    ce = F.cross_entropy(logits, target)
    prob = logits.float().softmax(1)
    onehot = F.one_hot(target, logits.shape[1]).movedim(-1, 1)
    inter = (prob * onehot).sum((2, 3, 4))
    dice = (2 * inter + 1e-5) / (prob.sum((2, 3, 4)) + onehot.sum((2, 3, 4)) + 1e-5)
    return ce + 1 - dice[:, 1:].mean()


def supervised_loss(outs, target):
    weights = torch.tensor([1 / 2 ** i for i in range(len(outs))])
    weights = (weights / weights.sum()).tolist()
    total = 0.0
    for w, out in zip(weights, outs):
        t = target if out.shape[2:] == target.shape[1:] else \
            F.interpolate(target[:, None].float(), out.shape[2:], mode="nearest")[:, 0].long()
        total = total + w * dice_ce(out, t)
    return total


def gaussian(size, device):
    axes = [torch.exp(-0.5 * ((torch.arange(s, device=device) - (s - 1) / 2) / (s / 8)) ** 2) for s in size]
    return (axes[0][:, None, None] * axes[1][None, :, None] * axes[2][None, None, :]).clamp_min(1e-4)


@torch.inference_mode()
def sliding_window(model, image, size, classes):
    model.eval()
    vol = torch.from_numpy(image)[None].to("cuda")
    weight = gaussian(size, "cuda")
    score = torch.zeros(classes, *vol.shape[2:], device="cuda")
    norm = torch.zeros(vol.shape[2:], device="cuda")
    starts = []
    for s, p in zip(vol.shape[2:], size):
        n = 1 if s == p else int(np.ceil((s - p) / (p / 2))) + 1
        starts.append(sorted({int(round(v)) for v in np.linspace(0, s - p, n)}))
    for corner in itertools.product(*starts):
        box = tuple(slice(c, c + p) for c, p in zip(corner, size))
        with torch.autocast("cuda", dtype=torch.float16):
            out = model(vol[(slice(None), slice(None), *box)])
        score[(slice(None), *box)] += out[0].float() * weight
        norm[box] += weight
    model.train()
    return (score / norm).argmax(0).cpu().numpy()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--patch", type=int, nargs=3, default=[128, 128, 96])
    p.add_argument("--volume", type=int, nargs=3, default=[144, 152, 112])
    p.add_argument("--base", type=int, default=32)
    p.add_argument("--batch", type=int, default=2)
    p.add_argument("--classes", type=int, default=4)
    p.add_argument("--iterations", type=int, default=50)
    p.add_argument("--depth", type=int, default=5)
    args = p.parse_args()
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    torch.backends.cudnn.benchmark = True

    cases = [Phantom(args.volume, args.classes, rng) for _ in range(3)]
    model = UNet3D(4, args.classes, args.base, args.depth).to("cuda").train()
    print(f"{sum(t.numel() for t in model.parameters()) / 1e6:.1f}M parameters")
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99, nesterov=True, weight_decay=3e-5)
    sched = torch.optim.lr_scheduler.PolynomialLR(opt, args.iterations, power=0.9)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0 ** 12)
    for it in range(1, args.iterations + 1):
        crops = [cases[int(rng.integers(2))].crop(args.patch, rng) for _ in range(args.batch)]
        image = torch.from_numpy(np.stack([c[0] for c in crops])).to("cuda")
        target = torch.from_numpy(np.stack([c[1] for c in crops])).to("cuda").long()
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = supervised_loss(model(image), target)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 12)
        scaler.step(opt)
        scaler.update()
        sched.step()
        if it % 10 == 0:
            print(f"iteration {it} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.4f}")
    pred = sliding_window(model, cases[2].image, args.patch, args.classes)
    for c in range(1, args.classes):
        a, b = pred == c, cases[2].label == c
        print(f"class {c} dice {2 * (a & b).sum() / max(1, a.sum() + b.sum()):.3f}")
    with tempfile.TemporaryDirectory() as folder:
        torch.save({"net": model.state_dict(), "opt": opt.state_dict()}, os.path.join(folder, "model_final.pth"))


if __name__ == "__main__":
    main()
