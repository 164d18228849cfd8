"""Anchor-free detector with a SimOTA-like assigner, trained on synthetic street scenes.

Images of one batch share a size, the size is redrawn each iteration (multi-scale training).
The number of boxes is free: most scenes hold a handful, now and then there is a crowd.
"""
from __future__ import annotations

import math
import os
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F

TINY = os.environ.get("TINY") == "1"
SCALE = float(os.environ.get("SCALE", "1"))


@dataclass
class Config:
    batch: int = max(1, round((2 if TINY else 16) * SCALE))
    iters: int = 6 if TINY else 24
    sizes: list[int] = field(default_factory=lambda: [64, 96] if TINY else [416, 480, 512, 576, 608, 640, 704])
    width: int = 8 if TINY else 48
    classes: int = 10
    strides: tuple[int, ...] = (8, 16, 32)
    topk: int = 10
    crowd_at: int = 4 if TINY else 15
    crowd_boxes: int = 60 if TINY else 4000
    lr: float = 1e-3
    seed: int = 3
    device: str = "cuda" if torch.cuda.is_available() else "cpu"


class CBS(nn.Sequential):
    def __init__(self, i, o, k=3, s=1):
        super().__init__(nn.Conv2d(i, o, k, s, k // 2, bias=False), nn.BatchNorm2d(o), nn.SiLU(inplace=True))


class CSP(nn.Module):
    def __init__(self, c, n):
        super().__init__()
        h = c // 2
        self.a, self.b = CBS(c, h, 1), CBS(c, h, 1)
        self.m = nn.ModuleList(nn.Sequential(CBS(h, h, 1), CBS(h, h, 3)) for _ in range(n))
        self.out = CBS(2 * h, c, 1)

    def forward(self, x):
        a = self.a(x)
        for m in self.m:
            a = a + m(a)
        return self.out(torch.cat([a, self.b(x)], 1))


class Detector(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        w = cfg.width
        self.stem = nn.Sequential(CBS(3, w // 2, 3, 2), CBS(w // 2, w, 3, 2), CSP(w, 1))
        self.s3 = nn.Sequential(CBS(w, 2 * w, 3, 2), CSP(2 * w, 3))
        self.s4 = nn.Sequential(CBS(2 * w, 4 * w, 3, 2), CSP(4 * w, 3))
        self.s5 = nn.Sequential(CBS(4 * w, 8 * w, 3, 2), CSP(8 * w, 1))
        f = 2 * w
        self.lat = nn.ModuleList([CBS(c, f, 1) for c in (2 * w, 4 * w, 8 * w)])
        self.head = nn.Sequential(CBS(f, f), CBS(f, f))
        self.cls, self.reg = nn.Conv2d(f, cfg.classes, 1), nn.Conv2d(f, 4, 1)
        nn.init.constant_(self.cls.bias, -math.log(99))
        self.strides = cfg.strides

    def forward(self, x):
        c3 = self.s3(self.stem(x))
        c4 = self.s4(c3)
        c5 = self.s5(c4)
        p5 = self.lat[2](c5)
        p4 = self.lat[1](c4) + F.interpolate(p5, size=c4.shape[-2:])
        p3 = self.lat[0](c3) + F.interpolate(p4, size=c3.shape[-2:])
        cls, box, pts, st = [], [], [], []
        for p, s in zip((p3, p4, p5), self.strides):
            h = self.head(p)
            hh, ww = h.shape[-2:]
            cls.append(self.cls(h).flatten(2).transpose(1, 2))
            ltrb = F.softplus(self.reg(h)).flatten(2).transpose(1, 2) * s
            ys, xs = torch.meshgrid(torch.arange(hh, device=x.device), torch.arange(ww, device=x.device), indexing="ij")
            c = (torch.stack([xs, ys], -1).reshape(-1, 2) + 0.5) * s
            box.append(torch.cat([c - ltrb[..., :2], c + ltrb[..., 2:]], -1))
            pts.append(c)
            st.append(torch.full((hh * ww,), float(s), device=x.device))
        return torch.cat(cls, 1), torch.cat(box, 1), torch.cat(pts), torch.cat(st)


def pairwise_iou(a, b):
    lt = torch.maximum(a[:, None, :2], b[None, :, :2])
    rb = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[..., 0] * wh[..., 1]
    area_a = (a[:, 2:] - a[:, :2]).prod(-1)
    area_b = (b[:, 2:] - b[:, :2]).prod(-1)
    return inter / (area_a[:, None] + area_b[None] - inter + 1e-6)


def giou_loss(p, t):
    lt, rb = torch.maximum(p[:, :2], t[:, :2]), torch.minimum(p[:, 2:], t[:, 2:])
    inter = (rb - lt).clamp(min=0).prod(-1)
    union = (p[:, 2:] - p[:, :2]).prod(-1) + (t[:, 2:] - t[:, :2]).prod(-1) - inter
    hull = (torch.maximum(p[:, 2:], t[:, 2:]) - torch.minimum(p[:, :2], t[:, :2])).prod(-1)
    return 1 - inter / (union + 1e-6) + (hull - union) / (hull + 1e-6)


@torch.no_grad()
def assign(logits, boxes, pts, strides, gt, labels, topk):
    """For each point the index of its ground truth, or -1."""
    iou = pairwise_iou(boxes, gt)                                       # [A, G]
    prob = logits.sigmoid()[:, labels]                                  # [A, G]
    centre = (gt[:, :2] + gt[:, 2:]) / 2
    near = ((pts[:, None] - centre[None]).abs() < 2.5 * strides[:, None, None]).all(-1)
    inside = ((pts[:, None] > gt[None, :, :2]) & (pts[:, None] < gt[None, :, 2:])).all(-1)
    cost = -torch.log(prob + 1e-8) - 3 * torch.log(iou + 1e-8) + 1e5 * (~(near & inside))
    k = min(topk, cost.shape[0])
    val, idx = cost.topk(k, dim=0, largest=False)                       # [k, G]
    keep = val < 1e4
    best = torch.full_like(cost, float("inf"))
    best.scatter_(0, idx, torch.where(keep, val, torch.inf))
    low, who = best.min(1)
    return torch.where(low.isfinite(), who, -1), iou


def scene(cfg, size, n_boxes, gen):
    """One image with painted rectangles and its targets."""
    wh = torch.rand(n_boxes, 2, generator=gen) * (0.06 if n_boxes > 100 else 0.3) * size + 6
    xy = torch.rand(n_boxes, 2, generator=gen) * (size - wh).clamp(min=1)
    labels = torch.randint(0, cfg.classes, (n_boxes,), generator=gen)
    img = torch.randn(3, size, size, generator=gen) * 0.2
    for (x, y), (w, h), c in zip(xy.int().tolist(), wh.int().tolist(), labels.tolist()):
        img[c % 3, y:y + h, x:x + w] += 0.3 + 0.1 * c
    return img, torch.cat([xy, xy + wh], 1), labels


def loss_fn(cfg, out, targets):
    cls, box, pts, st = out
    pos_total, cls_loss, box_loss = 0, box.new_zeros(()), box.new_zeros(())
    for b, (gt, labels) in enumerate(targets):
        who, iou = assign(cls[b].float(), box[b].float(), pts, st, gt, labels, cfg.topk)
        fg = who >= 0
        target = torch.zeros_like(cls[b], dtype=torch.float32)
        if fg.any():
            w = who[fg]
            target[fg, labels[w]] = iou[fg, w]
            box_loss = box_loss + giou_loss(box[b][fg].float(), gt[w]).sum()
            pos_total += int(fg.sum())
        p = cls[b].float()
        weight = (p.sigmoid() - target).abs().pow(2)
        cls_loss = cls_loss + (weight.detach() * F.binary_cross_entropy_with_logits(p, target, reduction="none")).sum()
    n = max(pos_total, 1)
    return cls_loss / n, 2.0 * box_loss / n, pos_total


def main(cfg: Config):
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    model = Detector(cfg).to(cfg.device)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.05, foreach=True)
    for it in range(cfg.iters):
        size = cfg.sizes[int(torch.randint(len(cfg.sizes), (1,), generator=gen))]
        counts = torch.randint(1, 25, (cfg.batch,), generator=gen).tolist()
        if it == cfg.crowd_at:
            counts[0] = cfg.crowd_boxes       # a marathon
        scenes = [scene(cfg, size, n, gen) for n in counts]
        x = torch.stack([s[0] for s in scenes]).to(cfg.device)
        targets = [(s[1].to(cfg.device), s[2].to(cfg.device)) for s in scenes]
        with torch.autocast(torch.device(cfg.device).type, dtype=torch.bfloat16):
            out = model(x)
        lc, lb, npos = loss_fn(cfg, out, targets)
        loss = lc + lb
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        opt.step()
        if it % 4 == 0 or it == cfg.crowd_at:
            print(f"it {it:3d} size {size} boxes {sum(counts):5d} pos {npos:6d} cls {lc.item():.3f} box {lb.item():.3f}")
    print("done")


if __name__ == "__main__":
    main(Config())
