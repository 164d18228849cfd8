"""ConvNeXt-ish image classifier: mixup, stochastic depth, EMA weights, bf16 + channels_last."""
import copy
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SCALE = float(os.environ.get("SCALE", "1"))
STEPS = int(os.environ.get("STEPS", "60"))
BATCH = max(1, round(128 * SCALE))
CLASSES = 200
RES = 128


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class DropPath(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if not self.training or self.p == 0:
            return x
        keep = 1 - self.p
        mask = x.new_empty(x.shape[0], 1, 1, 1).bernoulli_(keep)
        return x * mask / keep


class Block(nn.Module):
    def __init__(self, dim, drop):
        super().__init__()
        self.dw = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(1e-6 * torch.ones(dim))
        self.drop = DropPath(drop)

    def forward(self, x):
        y = self.dw(x).permute(0, 2, 3, 1)
        y = self.fc2(F.gelu(self.fc1(self.norm(y))))
        y = (self.gamma * y).permute(0, 3, 1, 2)
        return x + self.drop(y)


class ConvNeXt(nn.Module):
    def __init__(self, depths=(2, 2, 6, 2), dims=(64, 128, 256, 512), drop=0.1):
        super().__init__()
        rates = torch.linspace(0, drop, sum(depths)).tolist()
        layers = [nn.Conv2d(3, dims[0], 4, 4), LayerNorm2d(dims[0])]
        for i, (n, d) in enumerate(zip(depths, dims)):
            if i:
                layers += [LayerNorm2d(dims[i - 1]), nn.Conv2d(dims[i - 1], d, 2, 2)]
            layers += [Block(d, rates.pop(0)) for _ in range(n)]
        self.features = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(dims[-1])
        self.head = nn.Linear(dims[-1], CLASSES)

    def forward(self, x):
        return self.head(self.norm(self.features(x).mean((2, 3))))


class EMA:
    def __init__(self, model, decay=0.99):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        torch._foreach_lerp_(list(self.model.parameters()), list(model.parameters()), 1 - self.decay)


def mixup(x, y, alpha=0.8):
    lam = float(torch.distributions.Beta(alpha, alpha).sample())
    perm = torch.randperm(len(x), device=x.device)
    target = F.one_hot(y, CLASSES).float()
    return x.lerp(x[perm], 1 - lam), target.lerp(target[perm], 1 - lam)


def make_batch(protos, n, gen):
    y = torch.randint(0, CLASSES, (n,), device="cuda", generator=gen)
    x = F.interpolate(protos[y], size=(RES, RES), mode="bilinear")
    x = x + 0.5 * torch.randn(x.shape, device="cuda", generator=gen)
    return x.contiguous(memory_format=torch.channels_last), y


def main():
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    gen = torch.Generator("cuda").manual_seed(1)
    protos = torch.randn(CLASSES, 3, 8, 8, device="cuda")
    model = ConvNeXt().to("cuda", memory_format=torch.channels_last)
    ema = EMA(model)
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}], lr=2e-3)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1, (s + 1) / 10) * 0.5 * (1 + math.cos(math.pi * s / STEPS)))
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters, batch {BATCH}")

    for step in range(STEPS):
        x, y = make_batch(protos, BATCH, gen)
        x, target = mixup(x, y)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), target, label_smoothing=0.1)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        sched.step()
        ema.update(model)
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f} lr {sched.get_last_lr()[0]:.2e}")

    right = total = 0
    with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16):
        for _ in range(max(1, STEPS // 8)):
            x, y = make_batch(protos, 2 * BATCH, gen)
            logits = ema.model(x) + ema.model(x.flip(3))
            right += (logits.argmax(1) == y).sum().item()
            total += len(y)
    print(f"EMA accuracy with flip {right / total:.3f} over {total}")


if __name__ == "__main__":
    main()
