"""MoCo v2 pre-training: ResNet-50, momentum encoder, negatives queue, channels_last + bf16."""
import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class Bottleneck(nn.Module):
    def __init__(self, cin, width, stride):
        super().__init__()
        cout = width * 4
        self.conv1 = nn.Conv2d(cin, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, cout, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(cout)
        self.relu = nn.ReLU(inplace=True)
        self.short = None
        if stride != 1 or cin != cout:
            self.short = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.short is None else self.short(x)
        return self.relu(y)


class ResNet(nn.Module):
    def __init__(self, layers=(3, 4, 6, 3), width=64, out_dim=128):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width),
                                  nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        blocks, cin = [], width
        for i, n in enumerate(layers):
            for j in range(n):
                blocks.append(Bottleneck(cin, width * 2 ** i, 2 if i > 0 and j == 0 else 1))
                cin = width * 2 ** i * 4
        self.body = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.Linear(cin, cin), nn.ReLU(), nn.Linear(cin, out_dim))

    def forward(self, x):
        return self.head(self.body(self.stem(x)).mean(dim=(2, 3)))


class MoCo(nn.Module):
    def __init__(self, encoder, dim=128, queue=65536, momentum=0.999, temperature=0.2):
        super().__init__()
        self.q = encoder
        self.k = copy.deepcopy(encoder).requires_grad_(False)
        self.m, self.t = momentum, temperature
        self.register_buffer("queue", F.normalize(torch.randn(dim, queue), dim=0))
        self.ptr = 0

    @torch.no_grad()
    def update_key(self):
        for pk, pq in zip(self.k.parameters(), self.q.parameters()):
            pk.mul_(self.m).add_(pq, alpha=1 - self.m)

    @torch.no_grad()
    def enqueue(self, keys):
        n = keys.shape[0]
        pos = (self.ptr + torch.arange(n, device=keys.device)) % self.queue.shape[1]
        self.queue[:, pos] = keys.T
        self.ptr = (self.ptr + n) % self.queue.shape[1]

    def forward(self, im_q, im_k):
        q = F.normalize(self.q(im_q).float(), dim=1)
        with torch.no_grad():
            self.update_key()
            shuffle = torch.randperm(im_k.shape[0], device=im_k.device)
            k = F.normalize(self.k(im_k[shuffle]).float(), dim=1)[shuffle.argsort()]
        l_pos = (q * k).sum(1, keepdim=True)
        l_neg = q @ self.queue.clone().detach()
        logits = torch.cat([l_pos, l_neg], dim=1) / self.t
        labels = torch.zeros(logits.shape[0], dtype=torch.long, device=logits.device)
        self.enqueue(k)
        return F.cross_entropy(logits, labels), (logits.argmax(1) == 0).float().mean()


def augment(x):
    """Cheap GPU augmentation: horizontal flip, brightness/contrast, noise."""
    flip = torch.rand(x.shape[0], device=x.device) < 0.5
    x = torch.where(flip[:, None, None, None], x.flip(-1), x)
    gain = 1 + 0.4 * (torch.rand(x.shape[0], 1, 1, 1, device=x.device) - 0.5)
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    return (x - mean) * gain + mean + 0.05 * torch.randn_like(x)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=192)
    ap.add_argument("--size", type=int, default=224)
    ap.add_argument("--width", type=int, default=64)
    ap.add_argument("--queue", type=int, default=65536)
    ap.add_argument("--steps", type=int, default=6)
    ap.add_argument("--lr", type=float, default=0.03)
    args = ap.parse_args()

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = MoCo(ResNet(width=args.width), queue=args.queue).to(device, memory_format=torch.channels_last)
    opt = torch.optim.SGD(model.q.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=args.steps)

    for step in range(args.steps):
        raw = torch.randint(0, 256, (args.batch, 3, args.size, args.size), dtype=torch.uint8)
        images = raw.to(device, non_blocking=True).float().div_(255).sub_(0.45).div_(0.225)
        im_q = augment(images).contiguous(memory_format=torch.channels_last)
        im_k = augment(images).contiguous(memory_format=torch.channels_last)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss, acc = model(im_q, im_k)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        print(f"step {step} loss {loss.item():.4f} acc {acc.item():.3f} lr {sched.get_last_lr()[0]:.4f}")

    # alignment / uniformity of the learned features
    model.eval()
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        z1 = F.normalize(model.q(im_q).float(), dim=1)
        z2 = F.normalize(model.q(im_k).float(), dim=1)
    align = (z1 - z2).pow(2).sum(1).mean()
    uniform = torch.pdist(z1).pow(2).mul(-2).exp().mean().log()
    print(f"alignment {align.item():.4f} uniformity {uniform.item():.4f}")


if __name__ == "__main__":
    main()
