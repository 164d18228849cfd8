"""Cell segmentation with a hand-written U-Net: odd channel counts, odd tile sizes, sliding-window inference."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Cells(Dataset):
    def __init__(self, n, tile, seed):
        self.n, self.tile, self.seed = n, tile, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return draw_cells(self.tile, self.tile, 12, self.seed + i)


def draw_cells(h, w, count, seed):
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    mask = torch.zeros(h, w)
    for cy, cx, r in torch.rand(count, 3, generator=g).tolist():
        mask[((yy - cy * h) ** 2 + (xx - cx * w) ** 2) < (6 + 18 * r) ** 2] = 1.0
    image = torch.stack([mask * 0.7, 1 - mask * 0.5]) + 0.3 * torch.randn(2, h, w, generator=g)
    return image, mask[None]


class DoubleConv(nn.Sequential):
    def __init__(self, cin, cout, drop=0.0):
        super().__init__(
            nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.LeakyReLU(0.1, inplace=True),
            nn.Dropout2d(drop),
            nn.Conv2d(cout, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.LeakyReLU(0.1, inplace=True))


class UNet(nn.Module):
    def __init__(self, cin=2, cout=1, widths=(45, 91, 181, 363)):
        super().__init__()
        self.down = nn.ModuleList()
        for w in widths:
            self.down.append(DoubleConv(cin, w))
            cin = w
        self.bottom = DoubleConv(cin, cin + 64, drop=0.2)
        self.up, self.fuse = nn.ModuleList(), nn.ModuleList()
        c = cin + 64
        for w in reversed(widths):
            self.up.append(nn.ConvTranspose2d(c, w, 2, stride=2))
            self.fuse.append(DoubleConv(2 * w, w))
            c = w
        self.head = nn.Conv2d(c, cout, 1)

    def forward(self, x):
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, fuse, skip in zip(self.up, self.fuse, reversed(skips)):
            x = up(x)
            dh, dw = skip.shape[-2] - x.shape[-2], skip.shape[-1] - x.shape[-1]
            if dh or dw:
                x = F.pad(x, (0, dw, 0, dh), mode="replicate")
            x = fuse(torch.cat([skip, x], 1))
        return self.head(x)


def dice_bce(logits, target):
    prob = logits.sigmoid()
    inter = (prob * target).sum((1, 2, 3))
    dice = 1 - (2 * inter + 1) / (prob.sum((1, 2, 3)) + target.sum((1, 2, 3)) + 1)
    return F.binary_cross_entropy_with_logits(logits, target) + dice.mean()


@torch.no_grad()
def sliding_window(model, image, tile, overlap, batch):
    """Average overlapping tiles with a bump-shaped weight."""
    c, h, w = image.shape
    step = tile - overlap
    ys = list(range(0, max(1, h - tile), step)) + [h - tile]
    xs = list(range(0, max(1, w - tile), step)) + [w - tile]
    ramp = torch.hann_window(tile + 2, device=image.device)[1:-1].clamp(min=1e-2)
    weight = ramp[:, None] * ramp[None]
    total = torch.zeros(1, h, w, device=image.device)
    norm = torch.zeros_like(total)
    spots = [(y, x) for y in ys for x in xs]
    for s in range(0, len(spots), batch):
        part = spots[s:s + batch]
        tiles = torch.stack([image[:, y:y + tile, x:x + tile] for y, x in part])
        out = model(tiles).sigmoid()
        for (y, x), o in zip(part, out):
            total[:, y:y + tile, x:x + tile] += o * weight
            norm[:, y:y + tile, x:x + tile] += weight
    return total / norm


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--tile", type=int, default=253)
    ap.add_argument("--infer-tile", type=int, default=317)
    ap.add_argument("--batch", type=int, default=13)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--tiles-per-epoch", type=int, default=260)
    ap.add_argument("--slide", type=int, nargs=2, default=[1117, 1403])
    ap.add_argument("--widths", type=int, nargs="+", default=[45, 91, 181, 363])
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    torch.manual_seed(0)
    device = "cuda"

    model = UNet(widths=args.widths).to(device)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters")
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0)
    train = DataLoader(Cells(args.tiles_per_epoch, args.tile, 0), args.batch, shuffle=True, num_workers=2)
    slide, truth = draw_cells(*args.slide, 150, 12345)
    slide, truth = slide.to(device), truth.to(device)

    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for x, y in train:
            x, y = x.to(device), y.to(device)
            loss = dice_bce(model(x), y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 3.0)
            opt.step()
            total += loss.item()
        model.eval()
        pred = sliding_window(model, slide, args.infer_tile, 64, batch=8)
        hit = pred > 0.5
        dice = 2 * (hit * truth).sum() / (hit.sum() + truth.sum()).clamp(min=1)
        val = F.binary_cross_entropy(pred.clamp(1e-6, 1 - 1e-6), truth).item()
        plateau.step(val)
        print(f"epoch {epoch}: train {total / len(train):.4f} slide bce {val:.4f} dice {dice.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
