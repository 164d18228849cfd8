# 3-D residual network for nodule malignancy on CT patches of two spacings (plain fp32).
import argparse
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Nodules(Dataset):
    def __init__(self, count, shape, seed):
        self.rng_seed, self.count, self.shape = seed, count, shape
        self.labels = np.random.default_rng(seed).integers(0, 2, size=count)
        axes = [np.linspace(-1, 1, s, dtype=np.float32) for s in shape]
        z, y, x = np.meshgrid(*axes, indexing="ij")
        self.dist = z**2 + y**2 + x**2

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        rng = np.random.default_rng(self.rng_seed * 1000 + i)
        radius = 0.1 + 0.25 * self.labels[i] + 0.05 * rng.random()
        vol = rng.standard_normal(self.shape, dtype=np.float32) * 0.5
        vol += (self.dist < radius).astype(np.float32)
        return torch.from_numpy(vol)[None], float(self.labels[i])


def conv3(cin, cout, stride=1):
    return nn.Conv3d(cin, cout, 3, stride=stride, padding=1, bias=False)


class Bottleneck3d(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        mid = cout // 2
        self.body = nn.Sequential(
            nn.Conv3d(cin, mid, 1, bias=False), nn.InstanceNorm3d(mid, affine=True), nn.LeakyReLU(0.01, inplace=True),
            conv3(mid, mid, stride), nn.InstanceNorm3d(mid, affine=True), nn.LeakyReLU(0.01, inplace=True),
            nn.Conv3d(mid, cout, 1, bias=False), nn.InstanceNorm3d(cout, affine=True),
        )
        self.short = nn.Identity()
        if stride != 1 or cin != cout:
            self.short = nn.Sequential(nn.AvgPool3d(stride, ceil_mode=True) if stride > 1 else nn.Identity(),
                                       nn.Conv3d(cin, cout, 1, bias=False))
        self.act = nn.LeakyReLU(0.01)

    def forward(self, x):
        return self.act(self.body(x) + self.short(x))


class Net3d(nn.Module):
    def __init__(self, width=32, depths=(1, 2, 3, 2)):
        super().__init__()
        self.stem = nn.Sequential(conv3(1, width), nn.InstanceNorm3d(width, affine=True), nn.LeakyReLU(0.01, inplace=True))
        stages, cin = [], width
        for i, d in enumerate(depths):
            cout = width * 2**(i + 1)
            for j in range(d):
                stages.append(Bottleneck3d(cin, cout, 2 if j == 0 else 1))
                cin = cout
        self.stages = nn.Sequential(*stages)
        self.head = nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Dropout(0.3), nn.Linear(cin, 1))

    def forward(self, x):
        return self.head(self.stages(self.stem(x))).squeeze(1)


def auc(scores, labels):
    order = scores.argsort()
    ranks = torch.empty_like(scores)
    ranks[order] = torch.arange(1, len(scores) + 1, dtype=scores.dtype)
    pos = labels > 0.5
    n1, n0 = int(pos.sum()), int((~pos).sum())
    return ((ranks[pos].sum() - n1 * (n1 + 1) / 2) / max(n1 * n0, 1)).item()


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    scores, labels = [], []
    for vol, y in loader:
        vol = vol.to(device)
        # flip test-time augmentation
        out = sum(model(torch.flip(vol, dims)) for dims in ((), (2,), (3,), (4,))) / 4
        scores.append(out.cpu())
        labels.append(y)
    return auc(torch.cat(scores), torch.cat(labels))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--width", type=int, default=28)
    ap.add_argument("--batch", type=int, default=9)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--items", type=int, default=126)
    ap.add_argument("--fine", type=int, nargs=3, default=[56, 90, 90])
    ap.add_argument("--coarse", type=int, nargs=3, default=[34, 78, 78])
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()

    np.random.seed(10)
    torch.manual_seed(10)
    torch.backends.cudnn.allow_tf32 = False
    device = torch.device("cuda")
    model = Net3d(args.width).to(device)
    loss_fn = nn.BCEWithLogitsLoss()
    opt = torch.optim.SGD(model.parameters(), lr=args.lr * 10, momentum=0.95, weight_decay=1e-4)
    loaders = {}
    for name, shape, batch in (("coarse", args.coarse, args.batch * 2), ("fine", args.fine, args.batch)):
        tr = DataLoader(Nodules(args.items, tuple(shape), 1), batch_size=batch, shuffle=True, num_workers=2)
        va = DataLoader(Nodules(args.items // 4, tuple(shape), 2), batch_size=batch)
        loaders[name] = (tr, va)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=args.epochs * sum(len(t) for t, _ in loaders.values()))

    history = defaultdict(list)
    with tempfile.TemporaryDirectory() as tmp:
        for epoch in range(args.epochs):
            for name, (tr, va) in loaders.items():
                model.train()
                for vol, y in tr:
                    vol, y = vol.to(device), y.float().to(device)
                    loss = loss_fn(model(vol), y)
                    opt.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 12.0)
                    opt.step()
                    sched.step()
                    history[name].append(loss.item())
                print(f"epoch {epoch} {name}: loss {np.mean(history[name][-len(tr):]):.4f} "
                      f"auc {evaluate(model, va, device):.3f}")
            torch.save(model.state_dict(), Path(tmp) / "last.pt")


if __name__ == "__main__":
    main()
