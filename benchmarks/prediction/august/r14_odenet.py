"""ODE-Net image classifier: convolutional vector field integrated by a hand-written RK4, backprop through the solver."""
import argparse
import os
import tempfile

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def rk4(field, z, t0, t1, steps):
    h = (t1 - t0) / steps
    t = t0
    for _ in range(steps):
        k1 = field(t, z)
        k2 = field(t + h / 2, z + h / 2 * k1)
        k3 = field(t + h / 2, z + h / 2 * k2)
        k4 = field(t + h, z + h * k3)
        z = z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        t = t + h
    return z


def euler(field, z, t0, t1, steps):
    h = (t1 - t0) / steps
    for i in range(steps):
        z = z + h * field(t0 + i * h, z)
    return z


SOLVERS = {"rk4": rk4, "euler": euler}


class TimeConv(nn.Module):
    """Convolution with the time appended as a constant channel."""

    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin + 1, cout, 3, padding=1)

    def forward(self, t, x):
        tt = torch.full_like(x[:, :1], t)
        return self.conv(torch.cat([tt, x], 1))


class Field(nn.Module):
    def __init__(self, dim):
        super().__init__()
        groups = min(32, dim // 2)
        self.n1, self.n2, self.n3 = (nn.GroupNorm(groups, dim) for _ in range(3))
        self.c1, self.c2 = TimeConv(dim, dim), TimeConv(dim, dim)
        self.calls = 0

    def forward(self, t, x):
        self.calls += 1
        y = self.c1(t, F.relu(self.n1(x)))
        y = self.c2(t, F.relu(self.n2(y)))
        return self.n3(y)


class ODENet(nn.Module):
    def __init__(self, dim, classes, solver, steps):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, dim, 3, padding=1), nn.GroupNorm(dim // 4, dim), nn.ReLU(inplace=True),
            nn.Conv2d(dim, dim, 4, 2, 1), nn.GroupNorm(dim // 4, dim), nn.ReLU(inplace=True),
        )
        self.field = Field(dim)
        self.solver, self.steps = SOLVERS[solver], steps
        self.head = nn.Sequential(nn.GroupNorm(dim // 4, dim), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1),
                                  nn.Flatten(), nn.Linear(dim, classes))

    def forward(self, x, steps=None):
        z = self.solver(self.field, self.stem(x), 0.0, 1.0, steps or self.steps)
        return self.head(z)


def make_data(n, size, classes, seed):
    g = torch.Generator().manual_seed(seed)
    protos = torch.randn(classes, 3, 7, 7, generator=torch.Generator().manual_seed(1234))
    y = torch.randint(0, classes, (n,), generator=g)
    base = F.interpolate(protos, size=(size, size), mode="bilinear", align_corners=False)
    x = base[y] + 0.8 * torch.randn(n, 3, size, size, generator=g)
    return TensorDataset(x, y)


@torch.no_grad()
def test(model, loader, steps):
    model.eval()
    right = total = 0
    for x, y in loader:
        x, y = x.to("cuda"), y.to("cuda")
        right += (model(x, steps).argmax(1) == y).sum().item()
        total += len(y)
    model.train()
    return right / total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--dim", type=int, default=60)
    ap.add_argument("--size", type=int, default=36)
    ap.add_argument("--classes", type=int, default=12)
    ap.add_argument("--batch-size", type=int, default=150)
    ap.add_argument("--steps", type=int, default=8, help="solver steps")
    ap.add_argument("--solver", choices=sorted(SOLVERS), default="rk4")
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--train-size", type=int, default=1600)
    ap.add_argument("--lr", type=float, default=0.05)
    args = ap.parse_args()
    torch.manual_seed(33)
    torch.set_float32_matmul_precision("high")

    train = DataLoader(make_data(args.train_size, args.size, args.classes, 0), args.batch_size, shuffle=True)
    valid = DataLoader(make_data(500, args.size, args.classes, 1), 250)
    model = ODENet(args.dim, args.classes, args.solver, args.steps).to("cuda")
    print("parameters:", sum(p.numel() for p in model.parameters()))
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    sched = torch.optim.lr_scheduler.MultiStepLR(opt, [2], gamma=0.1)

    best, path = 0.0, os.path.join(tempfile.mkdtemp(), "odenet.pt")
    for epoch in range(args.epochs):
        model.field.calls, total = 0, 0.0
        for x, y in train:
            x, y = x.to("cuda"), y.to("cuda")
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            opt.step()
            total += loss.item()
        nfe = model.field.calls / len(train)
        coarse, fine = test(model, valid, args.steps // 2), test(model, valid, 2 * args.steps)
        sched.step()
        print(f"epoch {epoch} loss {total / len(train):.4f} nfe {nfe:.0f} acc coarse {coarse:.3f} fine {fine:.3f}")
        if fine > best:
            best = fine
            torch.save({"model": model.state_dict(), "args": vars(args)}, path)


if __name__ == "__main__":
    main()
