"""Face / vehicle re-identification with ArcFace over many identities. The evaluation keeps features and logits of the
whole query set on the GPU before it computes ranks, whitening by SVD and recall."""
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

IDS = 30_000
SIZE = (96, 48)


class Block(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.body = nn.Sequential(nn.BatchNorm2d(i), nn.Conv2d(i, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o), nn.PReLU(o),
                                  nn.Conv2d(o, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o))
        self.skip = nn.Identity() if i == o and stride == 1 else nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        return self.body(x) + self.skip(x)


class IRNet(nn.Module):
    def __init__(self, feat=512):
        super().__init__()
        layers, c = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.PReLU(64)], 64
        for o, n in ((64, 2), (128, 2), (256, 3), (512, 2)):
            for j in range(n):
                layers.append(Block(c, o, 2 if j == 0 else 1))
                c = o
        self.trunk = nn.Sequential(*layers)
        self.neck = nn.Sequential(nn.BatchNorm2d(512), nn.Dropout(0.4), nn.Flatten(), nn.Linear(512 * 6 * 3, feat), nn.BatchNorm1d(feat))

    def forward(self, x):
        return self.neck(self.trunk(x))


class ArcFace(nn.Module):
    def __init__(self, feat, ids, s=48.0, m=0.35):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(ids, feat) * 0.01)
        self.s, self.m = s, m

    def cosine(self, x):
        return F.linear(F.normalize(x), F.normalize(self.weight))

    def forward(self, x, label):
        cos = self.cosine(x).clamp(-1 + 1e-6, 1 - 1e-6)
        phi = torch.cos(torch.acos(cos) + self.m)
        one = torch.zeros_like(cos).scatter_(1, label[:, None], 1.0)
        return F.cross_entropy(self.s * (one * phi + (1 - one) * cos), label)


class Crops(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.label = torch.randint(0, IDS, (n,), generator=g)
        self.seed = seed

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        who = torch.Generator().manual_seed(int(self.label[i]))
        now = torch.Generator().manual_seed(self.seed * 1_000_003 + i)
        base = F.interpolate(torch.randn(1, 3, 8, 4, generator=who), size=SIZE)[0]
        return base + 0.4 * torch.randn(3, *SIZE, generator=now), self.label[i]


@torch.no_grad()
def evaluate(model, head, loader):
    model.eval()
    feats, logits, labels = [], [], []
    for x, y in loader:
        f = model(x.to("cuda"))
        feats.append(F.normalize(f))
        logits.append(head.cosine(f))
        labels.append(y)
    feats, logits, labels = torch.cat(feats), torch.cat(logits), torch.cat(labels).to("cuda")
    own = logits.gather(1, labels[:, None])
    rank = (logits > own).sum(1)
    prob = (48.0 * logits).softmax(1)
    conf = prob.max(1).values.mean().item()
    centred = feats - feats.mean(0)
    _, s, vh = torch.linalg.svd(centred, full_matrices=False)
    keep = min(128, len(s))
    white = F.normalize(centred @ vh[:keep].T / (s[:keep] + 1e-4))
    sim = white @ white.T
    sim.fill_diagonal_(-2)
    near = sim.topk(min(5, len(sim)), 1).indices
    same = (labels[near] == labels[:, None]).any(1).float().mean().item()
    energy = (s[:keep] ** 2).sum() / (s ** 2).sum()
    model.train()
    return {"queries": len(labels), "median_rank": rank.median().item(), "confidence": round(conf, 4),
            "recall@5": round(same, 4), "energy": round(energy.item(), 4)}


def main():
    torch.manual_seed(4)
    batch = max(2, round(128 * float(os.environ.get("SCALE", "1"))))
    steps = int(os.environ.get("STEPS", "20"))
    train = DataLoader(Crops(batch * steps, 1), batch_size=batch, shuffle=True, drop_last=True)
    query = DataLoader(Crops(3 * batch * steps, 2), batch_size=batch)
    model, head = IRNet().to("cuda"), ArcFace(512, IDS).to("cuda")
    opt = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.05, momentum=0.9, weight_decay=5e-4)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=2 * steps)
    for epoch in range(2):
        for i, (x, y) in enumerate(train):
            loss = head(model(x.to("cuda")), y.to("cuda"))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(head.parameters(), 10)
            opt.step()
            sched.step()
            if i % 8 == 0:
                print(f"epoch {epoch} step {i} loss {loss.item():.3f}", flush=True)
        print(f"epoch {epoch}", evaluate(model, head, query), flush=True)


if __name__ == "__main__":
    main()
