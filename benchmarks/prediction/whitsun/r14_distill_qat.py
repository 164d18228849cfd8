"""Quantisation-aware distillation: a compiled convolutional teacher guides a small inverted-residual student (Accelerate)."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset


class Patterns(Dataset):
    def __init__(self, n, classes, size, seed):
        self.n, self.classes, self.size, self.seed = n, classes, size, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 65537 + i)
        y = int(torch.randint(self.classes, (1,), generator=g))
        img = torch.randint(0, 256, (3, self.size, self.size), dtype=torch.uint8, generator=g)
        img[y % 3, y::self.classes] = 255 - y
        return img, y


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class NextBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.dw = nn.Conv2d(c, c, 7, padding=3, groups=c)
        self.mlp = nn.Sequential(nn.LayerNorm(c), nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c))
        self.gamma = nn.Parameter(torch.full((c,), 0.1))

    def forward(self, x):
        y = self.mlp(self.dw(x).permute(0, 2, 3, 1)) * self.gamma
        return x + y.permute(0, 3, 1, 2)


class Teacher(nn.Module):
    def __init__(self, classes, widths, depths):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 4, 4), LayerNorm2d(widths[0]))
        self.stages = nn.ModuleList()
        for i, (w, d) in enumerate(zip(widths, depths)):
            pre = [LayerNorm2d(widths[i - 1]), nn.Conv2d(widths[i - 1], w, 2, 2)] if i else []
            self.stages.append(nn.Sequential(*pre, *[NextBlock(w) for _ in range(d)]))
        self.head = nn.Sequential(nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], classes))

    def forward(self, x):
        x = self.stem(x)
        for s in self.stages:
            prev, x = x, s(x)
        return self.head(x.mean((2, 3))), prev


class RoundSTE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, lo, hi):
        q = x / scale
        ctx.save_for_backward((q >= lo) & (q <= hi))
        return q.round().clamp_(lo, hi) * scale

    @staticmethod
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        return grad * inside, None, None, None


class ActQuant(nn.Module):
    """8-bit fake quantisation with a moving-average range; the first calls only observe."""

    def __init__(self, observe=10):
        super().__init__()
        self.register_buffer("amax", torch.ones(()))
        self.observe, self.calls = observe, 0

    def forward(self, x):
        if self.training:
            self.calls += 1
            self.amax.lerp_(x.detach().abs().amax().float(), 0.1)
            if self.calls <= self.observe:
                return x
        return RoundSTE.apply(x, (self.amax / 127).clamp(min=1e-6).to(x.dtype), -128, 127)


class QConv(nn.Conv2d):
    def forward(self, x):
        scale = self.weight.detach().abs().amax((1, 2, 3), keepdim=True).clamp(min=1e-8) / 127
        return self._conv_forward(x, RoundSTE.apply(self.weight, scale, -127, 127), self.bias)


def unit(cin, cout, k, stride=1, groups=1, act=True):
    mods = [QConv(cin, cout, k, stride, k // 2, groups=groups, bias=False), nn.BatchNorm2d(cout)]
    return nn.Sequential(*mods, *([nn.Hardswish(inplace=True), ActQuant()] if act else []))


class Inverted(nn.Module):
    def __init__(self, cin, cout, stride, expand, k):
        super().__init__()
        mid = cin * expand
        self.body = nn.Sequential(unit(cin, mid, 1), unit(mid, mid, k, stride, mid), unit(mid, cout, 1, act=False))
        self.same = stride == 1 and cin == cout
        self.quant = ActQuant()

    def forward(self, x):
        y = self.body(x)
        return self.quant(x + y if self.same else y)


class Student(nn.Module):
    PLAN = [(22, 1, 2, 3, 3), (36, 2, 2, 4, 3), (52, 2, 3, 4, 5), (100, 2, 4, 5, 3), (148, 1, 2, 5, 5)]

    def __init__(self, classes, match):
        super().__init__()
        c, blocks = 22, []
        self.stem = unit(3, c, 3, 2)
        for cout, stride, repeat, expand, k in self.PLAN:
            for j in range(repeat):
                blocks.append(Inverted(c, cout, stride if j == 0 else 1, expand, k))
                c = cout
        self.blocks = nn.Sequential(*blocks)
        self.adapter = nn.Conv2d(c, match, 1)
        self.head = nn.Sequential(nn.Linear(c, 640), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(640, classes))

    def forward(self, x):
        x = self.blocks(self.stem(x))
        return self.head(x.mean((2, 3))), self.adapter(x)


def preprocess(u8):
    return ((u8.float() - 118.0) / 60.0).contiguous(memory_format=torch.channels_last)


def distill(student, teacher, loader, opt, sched, acc, args):
    student.train()
    for i, (img, y) in enumerate(loader):
        with acc.accumulate(student):
            x = preprocess(img)
            with torch.no_grad(), acc.autocast():
                t_logits, t_feat = teacher(x)
            s_logits, s_feat = student(x)
            kd = F.kl_div(F.log_softmax(s_logits.float() / args.temp, 1), F.softmax(t_logits.float() / args.temp, 1), reduction="batchmean")
            hint = F.mse_loss(F.adaptive_avg_pool2d(s_feat, t_feat.shape[-2:]).float(), t_feat.float())
            loss = F.cross_entropy(s_logits.float(), y) + args.temp ** 2 * kd + 0.5 * hint
            acc.backward(loss)
            if acc.sync_gradients:
                acc.clip_grad_norm_(student.parameters(), 2.0)
            opt.step()
            sched.step()
            opt.zero_grad()
        if i % 20 == 0:
            acc.print(f"batch {i}/{len(loader)} loss {loss.item():.4f} kd {kd.item():.4f} hint {hint.item():.4f}", flush=True)


@torch.no_grad()
def agreement(student, teacher, loader, acc):
    student.eval()
    same, right, seen = 0, 0, 0
    for img, y in loader:
        x = preprocess(img)
        with acc.autocast():
            t = teacher(x)[0].argmax(1)
        s, t, y = acc.gather_for_metrics((student(x)[0].argmax(1), t, y))
        same, right, seen = same + (s == t).sum().item(), right + (s == y).sum().item(), seen + len(y)
    acc.print(f"agreement {same / seen:.3f} accuracy {right / seen:.3f} on {seen}")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--device", default="cuda")
    for name, value in dict(classes=61, size=200, batch=112, accumulate=2, images=11200, val_images=1120, epochs=2, workers=8).items():
        ap.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    ap.add_argument("--temp", type=float, default=3.0)
    ap.add_argument("--widths", type=int, nargs=4, default=[112, 224, 448, 896])
    ap.add_argument("--depths", type=int, nargs=4, default=[3, 3, 12, 3])
    ap.add_argument("--no-compile", action="store_true")
    args = ap.parse_args()
    set_seed(77)
    acc = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=args.accumulate, cpu=args.device == "cpu")
    teacher = Teacher(args.classes, args.widths, args.depths).to(acc.device, memory_format=torch.channels_last)
    teacher.eval().requires_grad_(False)
    if not args.no_compile:
        teacher = torch.compile(teacher)
    student = Student(args.classes, args.widths[2]).to(memory_format=torch.channels_last)
    opt = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9, weight_decay=4e-5)
    opts = dict(batch_size=args.batch, num_workers=args.workers, pin_memory=args.device != "cpu", drop_last=True)
    train = DataLoader(Patterns(args.images, args.classes, args.size, 1), shuffle=True, **opts)
    val = DataLoader(Patterns(args.val_images, args.classes, args.size, 2), **opts)
    sched = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=args.epochs * len(train), power=0.9)
    student, opt, train, val, sched = acc.prepare(student, opt, train, val, sched)
    for epoch in range(args.epochs):
        t = time.time()
        distill(student, teacher, train, opt, sched, acc, args)
        agreement(student, teacher, val, acc)
        acc.print(f"epoch {epoch} took {time.time() - t:.1f}s")


if __name__ == "__main__":
    main()
