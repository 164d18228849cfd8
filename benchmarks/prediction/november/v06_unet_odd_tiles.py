# Hand-written residual U-Net for land-cover segmentation on tiles whose sides are not multiples of 16.
import argparse
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Block(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.skip(x))


class UNet(nn.Module):
    def __init__(self, bands, classes, base=40, depth=4):
        super().__init__()
        widths = [base * 2**i for i in range(depth + 1)]
        self.stem = Block(bands, widths[0])
        self.down = nn.ModuleList(Block(a, b) for a, b in zip(widths, widths[1:]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in zip(widths, widths[1:]))
        self.merge = nn.ModuleList(Block(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x):
        feats = [self.stem(x)]
        for block in self.down:
            feats.append(block(F.max_pool2d(feats[-1], 2, ceil_mode=True)))
        y = feats.pop()
        for up, merge in zip(reversed(self.up), reversed(self.merge)):
            skip = feats.pop()
            y = up(y)[..., : skip.shape[-2], : skip.shape[-1]]
            y = merge(torch.cat([skip, y], 1))
        return self.head(y)


class Tiles(Dataset):
    def __init__(self, n, shape, bands, classes, seed):
        self.n, self.shape, self.bands, self.classes, self.seed = n, shape, bands, classes, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 65537 + i)
        h, w = self.shape
        coarse = torch.randn(1, self.classes, 9, 7, generator=g)
        mask = F.interpolate(coarse, size=(h, w), mode="bilinear", align_corners=False)[0].argmax(0)
        img = mask.float().expand(self.bands, h, w) / self.classes
        noise = torch.randn(1, h, w, generator=g)
        return img + 0.3 * noise, mask


def dice_loss(logits, target, eps=1.0):
    prob = logits.softmax(1)
    onehot = F.one_hot(target, logits.size(1)).permute(0, 3, 1, 2).float()
    inter = (prob * onehot).sum((0, 2, 3))
    return 1 - ((2 * inter + eps) / (prob.sum((0, 2, 3)) + onehot.sum((0, 2, 3)) + eps)).mean()


@torch.no_grad()
def confusion(model, loader, classes, device):
    model.eval()
    mat = torch.zeros(classes, classes, dtype=torch.long, device=device)
    for x, y in loader:
        pred = model(x.to(device)).argmax(1)
        idx = y.to(device) * classes + pred
        mat += torch.bincount(idx.flatten(), minlength=classes**2).view(classes, classes)
    tp = mat.diag().float()
    return (tp / (mat.sum(0) + mat.sum(1) - tp).clamp(min=1)).mean().item()


@torch.no_grad()
def sliding(model, scene, tile, stride, classes):
    """Average of overlapping tile predictions over one large scene."""
    model.eval()
    _, H, W = scene.shape
    acc = torch.zeros(classes, H, W, device=scene.device)
    cnt = torch.zeros(1, H, W, device=scene.device)
    ys = list(range(0, H - tile, stride)) + [H - tile]
    xs = list(range(0, W - tile, stride)) + [W - tile]
    for y in ys:
        rows = torch.stack([scene[:, y:y + tile, x:x + tile] for x in xs])
        for x, prob in zip(xs, model(rows).softmax(1)):
            acc[:, y:y + tile, x:x + tile] += prob
            cnt[:, y:y + tile, x:x + tile] += 1
    return (acc / cnt).argmax(0)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--bands", type=int, default=5)
    ap.add_argument("--classes", type=int, default=9)
    ap.add_argument("--base", type=int, default=40)
    ap.add_argument("--batch", type=int, default=7)
    ap.add_argument("--steps", type=int, default=30)
    ap.add_argument("--shapes", type=int, nargs="+", default=[331, 277, 259, 397])
    ap.add_argument("--scene", type=int, nargs=2, default=[1187, 1043])
    ap.add_argument("--tile", type=int, default=301)
    args = ap.parse_args()

    torch.manual_seed(66)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda")
    model = UNet(args.bands, args.classes, args.base).to(device)
    opt = torch.optim.RAdam(model.parameters(), lr=2e-3, weight_decay=1e-4)
    shapes = list(zip(args.shapes[::2], args.shapes[1::2]))
    sched = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=args.steps * len(shapes), power=0.9)
    for shape in shapes:
        loader = DataLoader(Tiles(args.steps * args.batch, shape, args.bands, args.classes, shape[0]),
                            batch_size=args.batch, num_workers=2, pin_memory=True)
        model.train()
        for i, (x, y) in enumerate(loader):
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            logits = model(x)
            loss = F.cross_entropy(logits, y) + dice_loss(logits, y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            if i % 10 == 0:
                print(f"{shape} step {i} loss {loss.item():.4f}")
        val = DataLoader(Tiles(20, shape, args.bands, args.classes, 999), batch_size=10)
        print(f"{shape} mIoU {confusion(model, val, args.classes, device):.4f}")

    scene, truth = Tiles(1, tuple(args.scene), args.bands, args.classes, 4)[0]
    pred = sliding(model, scene.to(device), args.tile, args.tile * 2 // 3, args.classes)
    print(f"scene pixel accuracy {(pred == truth.to(device)).float().mean().item():.4f}")
    with tempfile.TemporaryDirectory() as tmp:
        torch.save(model.state_dict(), os.path.join(tmp, "unet.pt"))


if __name__ == "__main__":
    main()
