"""DGCNN part segmentation of point clouds: neighbour graphs rebuilt in feature space, SGD with cosine decay, fp32."""
import argparse
import math
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def nearest(x, k):
    """x: (B,C,N) -> (B,N,k) indices of the nearest points."""
    inner = -2 * x.transpose(2, 1) @ x
    square = (x ** 2).sum(1, keepdim=True)
    return (-square - inner - square.transpose(2, 1)).topk(k, dim=-1).indices


def edge_features(x, k, index=None):
    b, c, n = x.shape
    if index is None:
        index = nearest(x, k)
    flat = (index + torch.arange(b, device=x.device)[:, None, None] * n).reshape(-1)
    points = x.transpose(2, 1).contiguous()
    near = points.view(b * n, c)[flat].view(b, n, k, c)
    centre = points[:, :, None].expand(-1, -1, k, -1)
    return torch.cat([near - centre, centre], 3).permute(0, 3, 1, 2).contiguous()


def conv2(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2))


def conv1(i, o):
    return nn.Sequential(nn.Conv1d(i, o, 1, bias=False), nn.BatchNorm1d(o), nn.LeakyReLU(0.2))


class DGCNN(nn.Module):
    def __init__(self, parts, categories, k=20, width=64):
        super().__init__()
        self.k = k
        self.e1 = nn.Sequential(conv2(6, width), conv2(width, width))
        self.e2 = nn.Sequential(conv2(2 * width, width), conv2(width, width))
        self.e3 = conv2(2 * width, width)
        self.glob = conv1(3 * width, 1024)
        self.cat = conv1(categories, 64)
        self.head = nn.Sequential(conv1(1024 + 64 + 3 * width, 256), nn.Dropout(0.5), conv1(256, 256), nn.Dropout(0.5),
                                  conv1(256, 128), nn.Conv1d(128, parts, 1))

    def forward(self, xyz, category):
        x1 = self.e1(edge_features(xyz, self.k)).amax(-1)
        x2 = self.e2(edge_features(x1, self.k)).amax(-1)
        x3 = self.e3(edge_features(x2, self.k)).amax(-1)
        local = torch.cat([x1, x2, x3], 1)
        pooled = self.glob(local).amax(-1, keepdim=True)
        pooled = torch.cat([pooled, self.cat(category[..., None])], 1).expand(-1, -1, xyz.shape[2])
        return self.head(torch.cat([pooled, local], 1))


class Shapes(Dataset):
    """Capsules, tables and spirals; the part follows from where on the shape a point lies."""

    def __init__(self, n, points, categories, parts, seed):
        self.n, self.points, self.categories, self.parts, self.seed = n, points, categories, parts, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 10007 + i)
        c = i % self.categories
        u = torch.rand(self.points, generator=g)
        a = 2 * math.pi * torch.rand(self.points, generator=g)
        radius = 0.2 + 0.5 * (u * (c % 4 + 1) * math.pi).sin().abs()
        xyz = torch.stack([radius * a.cos(), radius * a.sin(), 2 * u - 1])
        xyz = xyz + 0.02 * torch.randn(xyz.shape, generator=g)
        label = (c * 3 + (u * 3).long().clamp(max=2)) % self.parts
        return xyz, F.one_hot(torch.tensor(c), self.categories).float(), label


def jitter(xyz):
    b = xyz.shape[0]
    scale = torch.empty(b, 3, 1, device=xyz.device).uniform_(0.66, 1.5)
    shift = torch.empty(b, 3, 1, device=xyz.device).uniform_(-0.2, 0.2)
    return xyz * scale + shift


@torch.no_grad()
def evaluate(model, loader, parts):
    model.eval()
    inter, union = torch.zeros(parts, device="cuda"), torch.zeros(parts, device="cuda")
    for xyz, category, label in loader:
        guess = model(xyz.to("cuda"), category.to("cuda")).argmax(1)
        label = label.to("cuda")
        for part in range(parts):
            a, b = guess == part, label == part
            inter[part] += (a & b).sum()
            union[part] += (a | b).sum()
    return (inter / union.clamp(min=1)).mean().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--points", type=int, default=1500)
    p.add_argument("--eval-points", type=int, default=2048)
    p.add_argument("--k", type=int, default=20)
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--train", type=int, default=200)
    p.add_argument("--lr", type=float, default=0.05)
    args = p.parse_args()
    torch.manual_seed(6)
    categories, parts = 10, 26

    model = DGCNN(parts, categories, args.k, args.width).to("cuda")
    train = DataLoader(Shapes(args.train, args.points, categories, parts, 1), args.batch, shuffle=True)
    test = DataLoader(Shapes(40, args.eval_points, categories, parts, 2), 20)
    opt = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4, nesterov=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * len(train), eta_min=1e-3)
    best = -1.0
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(args.epochs):
            model.train()
            seen, running = 0, 0.0
            for xyz, category, label in train:
                xyz, category, label = xyz.to("cuda"), category.to("cuda"), label.to("cuda")
                loss = F.cross_entropy(model(jitter(xyz), category), label, label_smoothing=0.2)
                opt.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                opt.step()
                sched.step()
                seen, running = seen + len(xyz), running + loss.item() * len(xyz)
            miou = evaluate(model, test, parts)
            print(f"epoch {epoch} loss {running / seen:.4f} mIoU {miou:.4f}")
            if miou > best:
                best = miou
                torch.save(model.state_dict(), os.path.join(folder, "best.pt"))
        model.load_state_dict(torch.load(os.path.join(folder, "best.pt"), map_location="cuda"))
    print(f"best again {evaluate(model, test, parts):.4f}")


if __name__ == "__main__":
    main()
