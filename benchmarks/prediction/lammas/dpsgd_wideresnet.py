"""DP-SGD with torch.func: per-sample gradients of a group-norm WideResNet, clipped, noised, with augmentation multiplicity."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad_and_value, vmap


class WSConv(nn.Conv2d):
    """Convolution with standardised weights."""

    def forward(self, x):
        w = self.weight
        mean, var = w.mean((1, 2, 3), keepdim=True), w.var((1, 2, 3), keepdim=True)
        return F.conv2d(x, (w - mean) * (var * w[0].numel() + 1e-4).rsqrt(), self.bias, self.stride, self.padding)


class Block(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(8, i), WSConv(i, o, 3, stride, 1)
        self.n2, self.c2 = nn.GroupNorm(8, o), WSConv(o, o, 3, 1, 1)
        self.skip = WSConv(i, o, 1, stride) if i != o or stride != 1 else None

    def forward(self, x):
        h = F.relu(self.n1(x))
        y = self.c2(F.relu(self.n2(self.c1(h))))
        return y + (x if self.skip is None else self.skip(h))


class WideResNet(nn.Module):
    def __init__(self, depth, width, classes):
        super().__init__()
        n, c = (depth - 4) // 6, 16
        layers = [WSConv(3, c, 3, 1, 1)]
        for s, o in enumerate((16 * width, 32 * width, 64 * width)):
            for j in range(n):
                layers.append(Block(c, o, 2 if s > 0 and j == 0 else 1))
                c = o
        self.body, self.norm, self.head = nn.Sequential(*layers), nn.GroupNorm(8, c), nn.Linear(c, classes)

    def forward(self, x):
        return self.head(F.relu(self.norm(self.body(x))).mean((2, 3)))


def augment(x, k):
    """k random crops and flips of each image: (n, k, 3, h, w)."""
    n, _, h, w = x.shape
    padded = F.pad(x, (4, 4, 4, 4), mode="reflect")
    out = torch.empty(n, k, *x.shape[1:], device=x.device)
    for j in range(k):
        dy, dx = torch.randint(0, 9, (2,)).tolist()
        view = padded[:, :, dy:dy + h, dx:dx + w]
        out[:, j] = view.flip(-1) if torch.rand(()) < 0.5 else view
    return out


class DPTrainer:
    def __init__(self, model, lr, clip, sigma, micro, ema):
        self.model, self.clip, self.sigma, self.micro, self.ema_decay = model, clip, sigma, micro, ema
        self.params = {k: v.detach() for k, v in model.named_parameters()}
        self.momentum = {k: torch.zeros_like(v) for k, v in self.params.items()}
        self.ema = {k: v.clone() for k, v in self.params.items()}
        self.lr = lr

        def loss_fn(params, x, y):
            return F.cross_entropy(functional_call(model, params, (x,)), y.expand(x.size(0)))
        self.per_sample = vmap(grad_and_value(loss_fn), in_dims=(None, 0, 0), randomness="different")

    def step(self, x, y, k, expected):
        total, losses, clipped = None, [], 0
        for xb, yb in zip(x.split(self.micro), y.split(self.micro)):
            grads, loss = self.per_sample(self.params, augment(xb, k), yb)
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
            scale = (self.clip / (norms + 1e-6)).clamp(max=1.0)
            summed = {n: torch.einsum("b,b...->...", scale, g) for n, g in grads.items()}
            total = summed if total is None else {n: total[n].add_(g) for n, g in summed.items()}
            losses.append(loss)
            clipped += (scale < 1).sum()
        for n, p in self.params.items():
            g = (total[n] + self.sigma * self.clip * torch.randn_like(p)) / expected
            self.momentum[n].mul_(0.9).add_(g)
            p.sub_(self.momentum[n], alpha=self.lr)
            self.ema[n].lerp_(p, 1 - self.ema_decay)
        return torch.cat(losses).mean().item(), clipped.item() / len(x)

    @torch.no_grad()
    def accuracy(self, x, y, batch):
        hits = [functional_call(self.model, self.ema, (xb,)).argmax(1).eq(yb) for xb, yb in zip(x.split(batch), y.split(batch))]
        return torch.cat(hits).float().mean().item()


def make_data(n, classes, device):
    proto = F.interpolate(torch.randn(classes, 3, 4, 4, device=device), size=32, mode="bilinear")
    y = torch.randint(0, classes, (n,), device=device)
    return proto[y] + 0.5 * torch.randn(n, 3, 32, 32, device=device), y


def main():
    p = argparse.ArgumentParser()
    for name, default in dict(depth=16, width=4, classes=10, items=8192, batch=512, micro=128, augment=2, steps=8).items():
        p.add_argument(f"--{name}", type=int, default=default)
    for name, default in dict(lr=0.5, clip=1.0, sigma=1.1, ema=0.9).items():
        p.add_argument(f"--{name}", type=float, default=default)
    args = p.parse_args()
    torch.manual_seed(8)
    device = torch.device("cuda")
    x, y = make_data(args.items, args.classes, device)
    xv, yv = make_data(args.items // 4, args.classes, device)
    trainer = DPTrainer(WideResNet(args.depth, args.width, args.classes).to(device), args.lr, args.clip, args.sigma, args.micro, args.ema)
    q = args.batch / args.items
    for step in range(1, args.steps + 1):
        chosen = (torch.rand(args.items, device=device) < q).nonzero().squeeze(1)  # Poisson sampling
        loss, frac = trainer.step(x[chosen], y[chosen], args.augment, args.batch)
        rho = step * q * q / (2 * args.sigma ** 2)
        print(f"step {step} loss {loss:.4f} batch {len(chosen)} clipped {frac:.2f} eps~{rho + 2 * math.sqrt(rho * math.log(1e5)):.3f}")
        if step % 4 == 0:
            print(f"step {step} accuracy {trainer.accuracy(xv, yv, 1000):.3f}")


if __name__ == "__main__":
    main()
