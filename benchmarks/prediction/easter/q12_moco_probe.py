"""MoCo v2 with a ResNet-50 and a queue (fp16, channels_last), then a linear probe fitted by L-BFGS on frozen features."""
import argparse
import copy
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision.models import resnet50


class MoCo(nn.Module):
    def __init__(self, dim, queue, momentum, temperature):
        super().__init__()
        self.momentum, self.temperature = momentum, temperature
        net = resnet50(weights=None)
        width = net.fc.in_features
        net.fc = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, dim))
        self.query = net
        self.key = copy.deepcopy(net).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(dim, queue), dim=0))
        self.pointer = 0

    @torch.no_grad()
    def follow(self):
        for k, q in zip(self.key.parameters(), self.query.parameters()):
            k.mul_(self.momentum).add_(q, alpha=1 - self.momentum)

    @torch.no_grad()
    def enqueue(self, keys):
        n, size = len(keys), self.queue.shape[1]
        index = (torch.arange(n, device=keys.device) + self.pointer) % size
        self.queue[:, index] = keys.T
        self.pointer = (self.pointer + n) % size

    def forward(self, a, b):
        q = F.normalize(self.query(a).float(), dim=1)
        with torch.no_grad():
            self.follow()
            order = torch.randperm(len(b), device=b.device)
            k = F.normalize(self.key(b[order]).float(), dim=1)[order.argsort()]
        positive = (q * k).sum(1, keepdim=True)
        negative = q @ self.queue.clone()
        logits = torch.cat([positive, negative], 1) / self.temperature
        self.enqueue(k)
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=q.device))


def augment(x, out):
    """Random crop, flip and colour on the device, one transform per picture."""
    b, device = len(x), x.device
    scale = torch.empty(b, device=device).uniform_(0.45, 1.0)
    flip = torch.where(torch.rand(b, device=device) < 0.5, -1.0, 1.0)
    shift = (torch.rand(b, 2, device=device) * 2 - 1) * (1 - scale[:, None])
    theta = torch.zeros(b, 2, 3, device=device)
    theta[:, 0, 0], theta[:, 1, 1], theta[:, :, 2] = scale * flip, scale, shift
    x = F.grid_sample(x, F.affine_grid(theta, (b, 3, out, out), align_corners=False), align_corners=False)
    gain = torch.empty(b, 3, 1, 1, device=device).uniform_(0.6, 1.4)
    grey = (torch.rand(b, 1, 1, 1, device=device) < 0.2).float()
    x = x * gain
    x = grey * x.mean(1, keepdim=True) + (1 - grey) * x
    return x.contiguous(memory_format=torch.channels_last)


def pictures(n, size, classes, seed):
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(0, classes, (n,), generator=g)
    base = torch.rand(classes, 3, 12, 12, generator=g)[label] + 0.3 * torch.randn(n, 3, 12, 12, generator=g)
    return F.interpolate(base, size=(size, size), mode="bilinear").half(), label


@torch.no_grad()
def features(net, images, size, batch, device):
    head, net.fc = net.fc, nn.Identity()
    net.eval()
    out = []
    for part in images.split(batch):
        x = F.interpolate(part.to(device).float(), size=(size, size), mode="bilinear").contiguous(memory_format=torch.channels_last)
        with torch.autocast(device, dtype=torch.float16):
            out.append(net(x).float())
    net.fc = head
    return torch.cat(out)


def fit_probe(x, y, classes, iterations, l2):
    x = (x - x.mean(0)) / (x.std(0) + 1e-5)
    probe = nn.Linear(x.shape[1], classes).to(x.device)
    opt = torch.optim.LBFGS(probe.parameters(), max_iter=iterations, history_size=12, line_search_fn="strong_wolfe")

    def closure():
        opt.zero_grad()
        loss = F.cross_entropy(probe(x), y) + l2 * probe.weight.pow(2).sum()
        loss.backward()
        return loss

    loss = opt.step(closure)
    return (probe(x).argmax(1) == y).float().mean().item(), loss.item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--batch", type=int, default=104)
    p.add_argument("--crop", type=int, default=164)
    p.add_argument("--images", type=int, default=1250)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--queue", type=int, default=24576)
    p.add_argument("--dim", type=int, default=128)
    p.add_argument("--lr", type=float, default=0.03)
    p.add_argument("--classes", type=int, default=20)
    args = p.parse_args()
    device = "cuda"
    torch.manual_seed(12)
    torch.backends.cudnn.benchmark = True

    images, labels = pictures(args.images, 120, args.classes, 1)
    model = MoCo(args.dim, args.queue, 0.99, 0.2).to(device, memory_format=torch.channels_last)
    opt = torch.optim.SGD(model.query.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(device)
    per_epoch = args.images // args.batch
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * per_epoch)
    for epoch in range(args.epochs):
        model.train()
        running = 0.0
        for index in torch.randperm(args.images).split(args.batch)[:per_epoch]:
            x = images[index].to(device).float()
            a, b = augment(x, args.crop), augment(x, args.crop)
            with torch.autocast(device, dtype=torch.float16):
                loss = model(a, b)
            opt.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            sched.step()
            running += loss.item()
        print(f"epoch {epoch} loss {running / per_epoch:.4f} scale {scaler.get_scale():.0f}")
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "scaler": scaler.state_dict()},
                       os.path.join(folder, "moco.pt"))

    opt.zero_grad(set_to_none=True)
    feats = features(model.query, images, 196, 150, device)
    accuracy, loss = fit_probe(feats, labels.to(device), args.classes, 40, 1e-4)
    print(f"linear probe: first loss {loss:.4f}, accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
