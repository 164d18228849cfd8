"""Self-supervised video pretraining: R3D-18 encoders, momentum encoder and a negative queue (MoCo v2)."""
import copy
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda"

FRAMES, SIZE = 16, 112
RAW_FRAMES, RAW_SIZE = 20, 128
WIDTH = 64
FEATURES = 128
QUEUE = 65536
TEMP = 0.2
MOMENTUM = 0.99
BATCH = 48
STEPS = 28
PROBE_BATCHES = 6
VIDEOS = 160


class BasicBlock3d(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv3d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm3d(cout)
        self.conv2 = nn.Conv3d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm3d(cout)
        self.relu = nn.ReLU(inplace=True)
        self.skip = nn.Identity()
        if stride != 1 or cin != cout:
            self.skip = nn.Sequential(nn.Conv3d(cin, cout, 1, stride, bias=False), nn.BatchNorm3d(cout))

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + self.skip(x))


class R3D18(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv3d(3, WIDTH, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False),
                                  nn.BatchNorm3d(WIDTH), nn.ReLU(inplace=True))
        layers, cin = [], WIDTH
        for i in range(4):
            cout = WIDTH * 2 ** i
            layers += [BasicBlock3d(cin, cout, 1 if i == 0 else 2), BasicBlock3d(cout, cout, 1)]
            cin = cout
        self.layers = nn.Sequential(*layers)
        self.projector = nn.Sequential(nn.Linear(cin, cin), nn.ReLU(), nn.Linear(cin, FEATURES))

    def features(self, x):
        return self.layers(self.stem(x)).mean(dim=(2, 3, 4))

    def forward(self, x):
        return F.normalize(self.projector(self.features(x)), dim=1)


class MoCo(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = R3D18()
        self.key = copy.deepcopy(self.query)
        self.key.requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(FEATURES, QUEUE), dim=0))
        self.ptr = 0

    @torch.no_grad()
    def update_key(self):
        for k, q in zip(self.key.parameters(), self.query.parameters()):
            k.mul_(MOMENTUM).add_(q, alpha=1 - MOMENTUM)

    @torch.no_grad()
    def enqueue(self, keys):
        n = keys.shape[0]
        end = min(self.ptr + n, QUEUE)
        self.queue[:, self.ptr:end] = keys[: end - self.ptr].T
        self.ptr = end % QUEUE

    def forward(self, a, b):
        q = self.query(a)
        with torch.no_grad():
            self.update_key()
            perm = torch.randperm(b.shape[0], device=b.device)
            k = torch.empty(b.shape[0], FEATURES, device=b.device)
            k[perm] = self.key(b[perm])
        pos = (q * k).sum(1, keepdim=True)
        neg = q @ self.queue.clone().detach()
        logits = torch.cat([pos, neg], dim=1) / TEMP
        loss = F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=q.device))
        self.enqueue(k)
        with torch.no_grad():
            acc = (logits.argmax(1) == 0).float().mean()
        return loss, acc


def make_videos(n, seed):
    """Moving sinusoid gratings as uint8 [n, 3, T, H, W]."""
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.linspace(0, 6.3, RAW_SIZE), torch.linspace(0, 6.3, RAW_SIZE), indexing="ij")
    t = torch.arange(RAW_FRAMES).float()[:, None, None]
    out = torch.empty(n, 3, RAW_FRAMES, RAW_SIZE, RAW_SIZE, dtype=torch.uint8)
    for i in range(n):
        fx, fy, speed = torch.rand(3, generator=g).tolist()
        wave = torch.sin(4 * fx * xx + 4 * fy * yy + speed * t)
        gain = torch.rand(3, 1, 1, 1, generator=g)
        out[i] = ((wave * gain + 1) * 127).to(torch.uint8)
    return out


def augment(v):
    """Random temporal and spatial crop, flip, brightness and blur noise on the device."""
    t0 = int(torch.randint(RAW_FRAMES - FRAMES + 1, (1,)))
    y0, x0 = torch.randint(RAW_SIZE - SIZE + 1, (2,)).tolist()
    v = v[:, :, t0: t0 + FRAMES, y0: y0 + SIZE, x0: x0 + SIZE].float() / 127.5 - 1
    flip = torch.rand(v.shape[0], 1, 1, 1, 1, device=v.device) < 0.5
    v = torch.where(flip, v.flip(-1), v)
    gain = 0.6 + 0.8 * torch.rand(v.shape[0], 3, 1, 1, 1, device=v.device)
    return v * gain + 0.05 * torch.randn_like(v)


def main():
    torch.manual_seed(0)
    videos = make_videos(VIDEOS, 5)
    model = MoCo().to(device).train()
    optimizer = torch.optim.SGD(model.query.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4, foreach=True)
    start = time.time()
    for step in range(STEPS):
        raw = videos[torch.randint(VIDEOS, (BATCH,))].to(device)
        loss, acc = model(augment(raw), augment(raw))
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        nn.utils.clip_grad_norm_(model.query.parameters(), 10.0, foreach=True)
        optimizer.step()
        if step % 4 == 0:
            print(f"step {step} loss {loss.item():.4f} acc {acc.item():.3f} {time.time() - start:.1f}s")

    model.eval()
    bank = []
    with torch.inference_mode():
        for i in range(PROBE_BATCHES):
            raw = videos[i * 24 % VIDEOS: i * 24 % VIDEOS + 24].to(device)
            bank.append(model.query.features(augment(raw)))
    feats = F.normalize(torch.cat(bank), dim=1)
    sim = feats @ feats.T
    print(f"mean similarity {sim.mean().item():.4f} {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
