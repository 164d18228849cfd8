"""3D segmentation: residual V-Net, fp16 with loss scaling, deep supervision, checkpointed stem, sliding window eval."""
import argparse
import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, cin, cout, n):
        super().__init__()
        layers = []
        for i in range(n):
            layers += [nn.Conv3d(cin if i == 0 else cout, cout, 3, padding=1, bias=False),
                       nn.InstanceNorm3d(cout, affine=True), nn.LeakyReLU(0.01, inplace=True)]
        self.body = nn.Sequential(*layers)
        self.short = nn.Conv3d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x):
        return self.body(x) + self.short(x)


class VNet(nn.Module):
    def __init__(self, cin, classes, ch, depth=4):
        super().__init__()
        w = [min(ch * 2 ** i, 320) for i in range(depth + 1)]
        self.stem = Block(cin, w[0], 2)
        self.down = nn.ModuleList(nn.Conv3d(w[i], w[i + 1], 2, 2) for i in range(depth))
        self.enc = nn.ModuleList(Block(w[i + 1], w[i + 1], 2) for i in range(depth))
        self.up = nn.ModuleList(nn.ConvTranspose3d(w[i + 1], w[i], 2, 2) for i in reversed(range(depth)))
        self.dec = nn.ModuleList(Block(2 * w[i], w[i], 2) for i in reversed(range(depth)))
        self.heads = nn.ModuleList(nn.Conv3d(w[i], classes, 1) for i in reversed(range(depth)))

    def forward(self, x):
        h = checkpoint(self.stem, x, use_reentrant=False) if self.training else self.stem(x)
        skips = []
        for down, enc in zip(self.down, self.enc):
            skips.append(h)
            h = enc(down(h))
        outs = []
        for up, dec, head in zip(self.up, self.dec, self.heads):
            h = up(h)
            s = skips.pop()
            d2, d1, d0 = (b - c for b, c in zip(s.shape[2:], h.shape[2:]))
            h = F.pad(h, (0, d0, 0, d1, 0, d2))
            h = dec(torch.cat([h, s], 1))
            outs.append(head(h))
        return outs[::-1] if self.training else outs[-1]


def dice_ce(logits, y):
    logits = logits.float()
    prob = logits.softmax(1)
    hot = F.one_hot(y, logits.size(1)).permute(0, 4, 1, 2, 3).float()
    dice = (2 * (prob * hot).sum((0, 2, 3, 4)) + 1) / (prob.sum((0, 2, 3, 4)) + hot.sum((0, 2, 3, 4)) + 1)
    return 1 - dice[1:].mean() + F.cross_entropy(logits, y)


def volume(n, shape, classes):
    grid = torch.stack(torch.meshgrid(*[torch.linspace(-1, 1, s) for s in shape], indexing="ij"))
    y = torch.zeros(n, *shape, dtype=torch.long)
    for b in range(n):
        for c in range(1, classes):
            centre, r = torch.rand(3, 1, 1, 1) * 1.2 - 0.6, 0.2 + 0.3 * float(torch.rand(()))
            y[b][((grid - centre) ** 2).sum(0) < r * r] = c
    return y.unsqueeze(1).float() + 0.5 * torch.randn(n, 2, *shape), y


@torch.no_grad()
def sliding_window(model, x, patch, classes, device, overlap=0.5):
    acc = torch.zeros(x.size(0), classes, *(size := x.shape[2:]), device=device)
    cnt = torch.zeros(1, 1, *size, device=device)
    starts = [sorted({*range(0, s - p + 1, int(p * (1 - overlap))), s - p}) for s, p in zip(size, patch)]
    for corner in itertools.product(*starts):
        sl = (..., *(slice(c, c + p) for c, p in zip(corner, patch)))
        acc[sl] += model(x[sl]).float().softmax(1)
        cnt[sl] += 1
    return acc.div_(cnt)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--device", default="cuda")
    p.add_argument("--patch", type=int, nargs=3, default=[112, 104, 88])
    p.add_argument("--full", type=int, nargs=3, default=[171, 149, 133])
    defaults = dict(batch=2, ch=32, classes=5, steps=10)
    for name, value in defaults.items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    a = p.parse_args()
    torch.manual_seed(1)
    half = torch.float16 if a.device == "cuda" else torch.bfloat16
    net = VNet(2, a.classes, a.ch).to(a.device)
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.99, nesterov=True, weight_decay=3e-5)
    scaler = torch.amp.GradScaler(a.device, init_scale=2.0 ** 12)
    for step in range(a.steps):
        x, y = (t.to(a.device) for t in volume(a.batch, a.patch, a.classes))
        opt.zero_grad(set_to_none=True)
        with torch.autocast(a.device, dtype=half):
            outs = net(x)
            loss = 0.0
            for i, o in enumerate(outs):
                yy = y if i == 0 else F.interpolate(y[:, None].float(), size=o.shape[2:]).squeeze(1).long()
                loss = loss + dice_ce(o, yy) * 0.5 ** i
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale():.0f}")
    net.eval()
    x, y = volume(1, a.full, a.classes)
    with torch.autocast(a.device, dtype=half):
        prob = sliding_window(net, x.to(a.device), a.patch, a.classes, a.device)
    pred = prob.argmax(1).cpu()
    dice = [2 * ((pred == c) & (y == c)).sum() / ((pred == c).sum() + (y == c).sum() + 1) for c in range(1, a.classes)]
    print("dice", [round(float(d), 3) for d in dice])


if __name__ == "__main__":
    main()
