"""ResNet-50 in channels_last with SGD + nesterov; validation loop forgets no_grad and keeps losses."""
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda"
torch.backends.cudnn.allow_tf32 = True
torch.backends.cudnn.benchmark = True

LAYERS = (3, 4, 6, 3)
WIDTH = 64
IMAGE = 224
CLASSES = 1000
POOL = 1536
BATCH = 176
STEPS = 48
VAL_EVERY = 24
VAL_BATCH = 56
VAL_BATCHES = 5


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, cin, width, stride):
        super().__init__()
        cout = width * self.expansion
        self.conv1 = nn.Conv2d(cin, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, cout, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(cout)
        self.relu = nn.ReLU(inplace=True)
        self.down = None
        if stride != 1 or cin != cout:
            self.down = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))
        nn.init.zeros_(self.bn3.weight)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.down is None else self.down(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, WIDTH, 7, 2, 3, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1))
        stages, cin = [], WIDTH
        for i, n in enumerate(LAYERS):
            width = WIDTH * 2 ** i
            for j in range(n):
                stages.append(Bottleneck(cin, width, 2 if i > 0 and j == 0 else 1))
                cin = width * Bottleneck.expansion
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(cin, CLASSES)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.stages(self.stem(x))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class HostPool:
    """A fixed pool of uint8 images in host memory; batches are normalized and augmented on the GPU."""

    def __init__(self, n, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.images = torch.randint(0, 256, (n, 3, IMAGE, IMAGE), dtype=torch.uint8, generator=self.g)
        self.labels = torch.randint(CLASSES, (n,), generator=self.g)
        self.mean = torch.tensor([123.7, 116.3, 103.5], device=device).view(1, 3, 1, 1)
        self.std = torch.tensor([58.4, 57.1, 57.4], device=device).view(1, 3, 1, 1)

    def batch(self, size, augment):
        idx = torch.randint(len(self.images), (size,), generator=self.g)
        x = self.images[idx].to(device).float()
        x = (x - self.mean) / self.std
        if augment:
            flip = torch.rand(size, 1, 1, 1, device=device) < 0.5
            x = torch.where(flip, x.flip(3), x)
        return x.contiguous(memory_format=torch.channels_last), self.labels[idx].to(device)


def validate(model, pool):
    model.eval()
    losses, hits = [], 0
    for _ in range(VAL_BATCHES):
        x, y = pool.batch(VAL_BATCH, augment=False)
        logits = model(x)
        losses.append(F.cross_entropy(logits, y))
        hits += (logits.topk(5).indices == y[:, None]).any(1).sum().item()
    mean = torch.stack(losses).mean()
    model.train()
    return mean.item(), hits / (VAL_BATCH * VAL_BATCHES)


def main():
    torch.manual_seed(0)
    model = ResNet().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-5)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    pool = HostPool(POOL, 11)
    best, best_state = float("inf"), None
    start = time.time()
    for step in range(STEPS):
        x, y = pool.batch(BATCH, augment=True)
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 8 == 0:
            print(f"step {step} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.4f} {time.time() - start:.1f}s")
        if (step + 1) % VAL_EVERY == 0:
            val, top5 = validate(model, pool)
            print(f"  val {val:.4f} top5 {top5:.4f}")
            if val < best:
                best = val
                best_state = {k: v.detach().cpu() for k, v in model.state_dict().items()}
    model.load_state_dict(best_state)
    print(f"best {best:.4f} {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
