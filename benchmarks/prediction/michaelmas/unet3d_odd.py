"""3-D residual U-Net on odd-sized CT crops: bf16, activation checkpointing, Dice+CE, sliding-window validation."""
import argparse
import io
import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

class Block(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv3d(cin, cout, 3, padding=1, bias=False), nn.InstanceNorm3d(cout, affine=True),
            nn.LeakyReLU(0.01, inplace=True),
            nn.Conv3d(cout, cout, 3, padding=1, bias=False), nn.InstanceNorm3d(cout, affine=True))
        self.skip = nn.Conv3d(cin, cout, 1) if cin != cout else nn.Identity()
    def forward(self, x):
        return F.leaky_relu_(self.body(x) + self.skip(x), 0.01)

class UNet3D(nn.Module):
    def __init__(self, classes, widths=(24, 48, 96, 192)):
        super().__init__()
        self.inc = Block(1, widths[0])
        self.down = nn.ModuleList(nn.Conv3d(w, w, 3, stride=2, padding=1) for w in widths[:-1])
        self.enc = nn.ModuleList(Block(a, b) for a, b in zip(widths[:-1], widths[1:]))
        self.red = nn.ModuleList(nn.Conv3d(b, a, 1) for a, b in zip(widths[:-1], widths[1:]))
        self.dec = nn.ModuleList(Block(2 * a, a) for a in widths[:-1])
        self.heads = nn.ModuleList(nn.Conv3d(w, classes, 1) for w in widths[:2])
    def run(self, mod, x):
        if self.training:
            return checkpoint(mod, x, use_reentrant=False)
        return mod(x)

    def forward(self, x):
        skips = [self.run(self.inc, x)]
        for down, enc in zip(self.down, self.enc):
            skips.append(self.run(enc, down(skips[-1])))
        x, outs = skips.pop(), []
        for i in reversed(range(len(self.dec))):
            up = F.interpolate(self.red[i](x), size=skips[i].shape[2:], mode="trilinear", align_corners=False)
            x = self.run(self.dec[i], torch.cat([up, skips[i]], 1))
            if i < 2:
                outs.append(self.heads[i](x))
        return outs[::-1] if self.training else outs[-1]

def dice_ce(logits, target, classes):
    logits = logits.float()
    prob = logits.softmax(1)
    hot = F.one_hot(target, classes).movedim(-1, 1).float()
    inter = (prob * hot).sum((0, 2, 3, 4))
    dice = 1 - (2 * inter + 1) / (prob.sum((0, 2, 3, 4)) + hot.sum((0, 2, 3, 4)) + 1)
    return dice.mean() + F.cross_entropy(logits, target)

def phantom(b, size, classes, dev):
    grid = torch.stack(torch.meshgrid(*[torch.linspace(-1, 1, s, device=dev) for s in size], indexing="ij"))
    c = torch.rand(b, 3, 1, 1, 1, device=dev) - 0.5
    r = ((grid[None] - c) ** 2).sum(1).sqrt()
    target = (r * 3).long().clamp(max=classes - 1)
    return target.unsqueeze(1).float() + 0.3 * torch.randn(b, 1, *size, device=dev), target

@torch.inference_mode()
def sliding_window(model, vol, crop, classes, overlap=0.5):
    size = vol.shape[2:]
    starts = []
    for s, c in zip(size, crop):
        step = max(1, int(c * (1 - overlap)))
        starts.append(sorted(set(list(range(0, max(1, s - c), step)) + [s - c])))
    acc = torch.zeros(1, classes, *size, device=vol.device)
    cnt = torch.zeros(1, 1, *size, device=vol.device)
    for i, j, k in itertools.product(*starts):
        sl = (slice(None), slice(None), slice(i, i + crop[0]), slice(j, j + crop[1]), slice(k, k + crop[2]))
        with torch.autocast("cuda", dtype=torch.bfloat16):
            acc[sl] += model(vol[sl]).float().softmax(1)
        cnt[sl] += 1
    return (acc / cnt).argmax(1)

def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--crop", type=int, nargs=3, default=[97, 119, 131])
    ap.add_argument("--volume", type=int, nargs=3, default=[165, 221, 213])
    ap.add_argument("--batch", type=int, default=3)
    ap.add_argument("--classes", type=int, default=5)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--iters", type=int, default=4)
    a = ap.parse_args()
    torch.manual_seed(21)
    model = UNet3D(a.classes).to("cuda")
    opt = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.99, nesterov=True, weight_decay=3e-5)
    sched = torch.optim.lr_scheduler.PolynomialLR(opt, a.epochs, power=0.9)
    best, saved = -1.0, None
    for epoch in range(a.epochs):
        model.train()
        for it in range(a.iters):
            x, y = phantom(a.batch, a.crop, a.classes, "cuda")
            with torch.autocast("cuda", dtype=torch.bfloat16):
                full, half = model(x)
            y2 = F.interpolate(y[:, None].float(), size=half.shape[2:], mode="nearest")[:, 0].long()
            loss = dice_ce(full, y, a.classes) + 0.5 * dice_ce(half, y2, a.classes)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 12)
            opt.step()
            print(f"epoch {epoch} it {it} loss {loss.item():.4f}")
        sched.step()
        model.eval()
        vol, gt = phantom(1, a.volume, a.classes, "cuda")
        acc = (sliding_window(model, vol, a.crop, a.classes) == gt).float().mean().item()
        print(f"epoch {epoch} val accuracy {acc:.4f}")
        if acc > best:
            best, saved = acc, io.BytesIO()
            torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, saved)
    saved.seek(0)
    ck = torch.load(saved, map_location="cuda")
    model.load_state_dict(ck["model"])
    print(f"restored best {best:.4f}")

if __name__ == "__main__":
    main()
