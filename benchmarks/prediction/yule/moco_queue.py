"""MoCo style contrastive pretraining: momentum encoder, negative queue, fp16 scaler, side-stream prefetch."""
import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class Bottleneck(nn.Module):
    def __init__(self, cin, mid, stride):
        super().__init__()
        out = mid * 4
        self.body = nn.Sequential(
            nn.Conv2d(cin, mid, 1, bias=False), nn.BatchNorm2d(mid), nn.ReLU(inplace=True),
            nn.Conv2d(mid, mid, 3, stride, 1, bias=False), nn.BatchNorm2d(mid), nn.ReLU(inplace=True),
            nn.Conv2d(mid, out, 1, bias=False), nn.BatchNorm2d(out))
        self.short = nn.Identity() if cin == out and stride == 1 else nn.Sequential(
            nn.Conv2d(cin, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        return F.relu(self.body(x).add_(self.short(x)), inplace=True)


class Encoder(nn.Module):
    def __init__(self, depths, width, dim):
        super().__init__()
        layers, c = [nn.Conv2d(3, width, 7, 2, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], width
        for s, n in enumerate(depths):
            for i in range(n):
                layers.append(Bottleneck(c, width * 2 ** s, 2 if i == 0 and s > 0 else 1))
                c = width * 2 ** s * 4
        self.trunk = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.proj = nn.Sequential(nn.Linear(c, c), nn.BatchNorm1d(c), nn.ReLU(), nn.Linear(c, dim))

    def forward(self, x):
        return F.normalize(self.proj(self.trunk(x)).float(), dim=1)


class Prefetcher:
    def __init__(self, make, n, device):
        self.make, self.left, self.device = make, n, device
        self.stream = torch.cuda.Stream() if device == "cuda" else None
        self.load()

    def load(self):
        self.next = None
        if self.left > 0:
            self.left -= 1
            host, label = self.make()
            with torch.cuda.stream(self.stream):
                x = (host.pin_memory() if self.stream else host).to(self.device, non_blocking=True)
                self.next = (x.float().div_(255), label.to(self.device))

    def __iter__(self):
        while self.next is not None:
            if self.stream is not None:
                torch.cuda.current_stream().wait_stream(self.stream)
                self.next[0].record_stream(torch.cuda.current_stream())
            cur = self.next
            self.load()
            yield cur


def augment(x, size):
    n = x.size(0)
    scale = torch.empty(n, 1, device=x.device).uniform_(0.5, 1.0)
    flip = torch.where(torch.rand(n, 1, device=x.device) < 0.5, -1.0, 1.0)
    theta = torch.zeros(n, 2, 3, device=x.device)
    theta[:, 0, 0], theta[:, 1, 1] = (scale * flip)[:, 0], scale[:, 0]
    theta[:, :, 2] = (torch.rand(n, 2, device=x.device) * 2 - 1) * (1 - scale)
    x = F.grid_sample(x, F.affine_grid(theta, (n, 3, size, size), align_corners=False), align_corners=False)
    x = x * torch.empty(n, 3, 1, 1, device=x.device).uniform_(0.6, 1.4)
    return x.contiguous(memory_format=torch.channels_last)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--device", default="cuda")
    defaults = dict(batch=256, size=160, queue=65536, width=64, steps=12)
    for name, value in defaults.items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    p.add_argument("--depths", type=int, nargs=4, default=[2, 3, 4, 2])
    a = p.parse_args()
    torch.manual_seed(8)
    q = Encoder(a.depths, a.width, 128).to(a.device, memory_format=torch.channels_last)
    k = copy.deepcopy(q).requires_grad_(False)
    queue, ptr = F.normalize(torch.randn(128, a.queue, device=a.device), dim=0), 0
    opt = torch.optim.SGD(q.parameters(), lr=0.06, momentum=0.9, weight_decay=1e-4, nesterov=True)
    scaler = torch.amp.GradScaler(a.device)
    proto = torch.randint(0, 256, (10, 3, 9, 9)).float()

    def make():
        y = torch.randint(0, 10, (a.batch,))
        base = F.interpolate(proto[y], size=a.size + 32) * 0.7
        return base.add_(torch.rand_like(base), alpha=76).to(torch.uint8), y

    for step, (img, _) in enumerate(Prefetcher(make, a.steps, a.device)):
        x1, x2 = augment(img, a.size), augment(img, a.size)
        with torch.autocast(a.device, dtype=torch.float16 if a.device == "cuda" else torch.bfloat16):
            f1 = q(x1)
            with torch.no_grad():
                torch._foreach_lerp_(list(k.parameters()), [t.detach() for t in q.parameters()], 0.01)
                perm = torch.randperm(a.batch, device=a.device)
                f2 = k(x2[perm])[perm.argsort()]
            neg = f1 @ queue.clone()
            logits = torch.cat([(f1 * f2).sum(1, keepdim=True).to(neg.dtype), neg], 1) / 0.2
            loss = F.cross_entropy(logits, torch.zeros(a.batch, dtype=torch.long, device=a.device))
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        queue[:, ptr:ptr + a.batch] = f2.t()
        ptr = (ptr + a.batch) % a.queue
        print(f"step {step} loss {loss.item():.4f} top1 {(logits.argmax(1) == 0).float().mean().item():.3f} scale {scaler.get_scale():.0f}")


if __name__ == "__main__":
    main()
