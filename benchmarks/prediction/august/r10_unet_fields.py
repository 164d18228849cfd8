"""U-Net for field boundaries in 4-band satellite tiles, strict fp32, with sliding-window inference on a scene."""
import argparse
import os
import tempfile

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.backends.cudnn.allow_tf32 = False
torch.set_float32_matmul_precision("highest")


def double_conv(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
    )


class Up(nn.Module):
    def __init__(self, cin, cskip, cout):
        super().__init__()
        self.up = nn.ConvTranspose2d(cin, cin // 2, 2, stride=2)
        self.conv = double_conv(cin // 2 + cskip, cout)

    def forward(self, x, skip):
        x = self.up(x)
        dh, dw = skip.shape[-2] - x.shape[-2], skip.shape[-1] - x.shape[-1]
        if dh or dw:
            x = F.pad(x, [dw // 2, dw - dw // 2, dh // 2, dh - dh // 2])
        return self.conv(torch.cat([skip, x], dim=1))


class UNet(nn.Module):
    def __init__(self, bands=4, classes=3, base=36, depth=4):
        super().__init__()
        widths = [base * 2 ** i for i in range(depth + 1)]
        self.stem = double_conv(bands, widths[0])
        self.downs = nn.ModuleList(double_conv(a, b) for a, b in zip(widths[:-1], widths[1:]))
        self.ups = nn.ModuleList(Up(b, a, a) for a, b in zip(widths[-2::-1], widths[:0:-1]))
        self.drop = nn.Dropout2d(0.2)
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x):
        skips = [self.stem(x)]
        for down in self.downs:
            skips.append(down(F.max_pool2d(skips[-1], 2)))
        x = self.drop(skips.pop())
        for up in self.ups:
            x = up(x, skips.pop())
        return self.head(x)


def voronoi_scene(h, w, n_sites, rng):
    """Coarse nearest-site map, upscaled: class 0 field, 1 boundary, 2 other cover."""
    hs, ws = h // 4 + 1, w // 4 + 1
    sites = rng.random((n_sites, 2)) * [hs, ws]
    yy, xx = np.mgrid[:hs, :ws]
    d = (yy[..., None] - sites[:, 0]) ** 2 + (xx[..., None] - sites[:, 1]) ** 2
    owner = d.argmin(-1)
    label = np.where(owner % 5 == 0, 2, 0)
    edge = (owner != np.roll(owner, 1, 0)) | (owner != np.roll(owner, 1, 1))
    label[edge] = 1
    label = label.repeat(4, 0).repeat(4, 1)[:h, :w]
    spectra = rng.random((n_sites, 4)).astype(np.float32)
    image = spectra[owner].repeat(4, 0).repeat(4, 1)[:h, :w].transpose(2, 0, 1)
    return np.ascontiguousarray(image), label.astype(np.int64)


class Tiles(Dataset):
    def __init__(self, scene, label, tile, n, seed):
        self.scene, self.label, self.tile = torch.from_numpy(scene), torch.from_numpy(label), tile
        g = torch.Generator().manual_seed(seed)
        h, w = label.shape
        self.tops = torch.randint(0, h - tile, (n,), generator=g)
        self.lefts = torch.randint(0, w - tile, (n,), generator=g)

    def __len__(self):
        return len(self.tops)

    def __getitem__(self, i):
        t, l, s = int(self.tops[i]), int(self.lefts[i]), self.tile
        return self.scene[:, t:t + s, l:l + s], self.label[t:t + s, l:l + s]


def dice_ce(logits, target):
    ce = F.cross_entropy(logits, target, weight=torch.tensor([1.0, 4.0, 1.5], device=logits.device))
    prob = logits.softmax(1)
    onehot = F.one_hot(target, logits.shape[1]).permute(0, 3, 1, 2).float()
    inter = (prob * onehot).sum((0, 2, 3))
    dice = (2 * inter + 1) / (prob.sum((0, 2, 3)) + onehot.sum((0, 2, 3)) + 1)
    return ce + 1 - dice.mean()


@torch.no_grad()
def predict_scene(model, scene, tile, overlap, batch):
    model.eval()
    x = torch.from_numpy(scene).to("cuda")
    _, h, w = x.shape
    step = tile - overlap
    spots = [(min(t, h - tile), min(l, w - tile)) for t in range(0, h, step) for l in range(0, w, step)]
    votes = torch.zeros(3, h, w, device="cuda")
    for i in range(0, len(spots), batch):
        part = spots[i:i + batch]
        tiles = torch.stack([x[:, t:t + tile, l:l + tile] for t, l in part])
        for p, (t, l) in zip(model(tiles).softmax(1), part):
            votes[:, t:t + tile, l:l + tile] += p
    return votes.argmax(0)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--tile", type=int, default=300)
    ap.add_argument("--batch-size", type=int, default=10)
    ap.add_argument("--tiles", type=int, default=170)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--scene", type=int, nargs=2, default=[1000, 1240])
    ap.add_argument("--base", type=int, default=36)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    torch.manual_seed(8)
    rng = np.random.default_rng(8)

    train_scene, train_label = voronoi_scene(*args.scene, 120, rng)
    test_scene, test_label = voronoi_scene(args.scene[0] - 100, args.scene[1] - 60, 100, rng)
    loader = DataLoader(Tiles(train_scene, train_label, args.tile, args.tiles, 0), args.batch_size, shuffle=True)

    model = UNet(base=args.base).to("cuda")
    opt = torch.optim.RMSprop(model.parameters(), lr=args.lr, alpha=0.99, momentum=0.9, weight_decay=1e-8)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, "max", patience=0, factor=0.3)
    truth = torch.from_numpy(test_label).to("cuda")

    with tempfile.TemporaryDirectory() as tmp:
        for epoch in range(args.epochs):
            model.train()
            losses = []
            for x, y in loader:
                x, y = x.to("cuda"), y.to("cuda")
                if torch.rand(()) < 0.5:
                    x, y = x.flip(-1), y.flip(-1)
                loss = dice_ce(model(x), y)
                opt.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                losses.append(loss.item())
            pred = predict_scene(model, test_scene, args.tile, overlap=60, batch=6)
            boundary = ((pred == 1) & (truth == 1)).sum() / ((pred == 1) | (truth == 1)).sum().clamp(min=1)
            acc = (pred == truth).float().mean().item()
            sched.step(boundary.item())
            print(f"epoch {epoch} loss {np.mean(losses):.4f} acc {acc:.4f} boundary IoU {boundary.item():.4f}")
            torch.save(model.state_dict(), os.path.join(tmp, f"unet_{epoch}.pt"))


if __name__ == "__main__":
    main()
