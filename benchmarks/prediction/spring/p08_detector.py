"""Two-stage detector: conv backbone + FPN, proposals by topk and NMS, RoI crops by grid_sample."""
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda"

IMAGE = 768
BATCH = 8
STEPS = 40
EVAL_STEPS = 6
WIDTH = 64
FPN = 256
CLASSES = 20
STRIDES = (8, 16, 32)
SCALES = (1.0, 1.26, 1.59)
PRE_NMS, POST_NMS = 2000, 512
ROI = 7


def conv_bn(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.SiLU(inplace=True))


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.body = nn.Sequential(conv_bn(c, c), conv_bn(c, c))

    def forward(self, x):
        return x + self.body(x)


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        w = WIDTH
        self.stem = nn.Sequential(conv_bn(3, w // 2, 2), conv_bn(w // 2, w, 2), Residual(w), Residual(w))
        self.c3 = nn.Sequential(conv_bn(w, 2 * w, 2), *[Residual(2 * w) for _ in range(4)])
        self.c4 = nn.Sequential(conv_bn(2 * w, 4 * w, 2), *[Residual(4 * w) for _ in range(6)])
        self.c5 = nn.Sequential(conv_bn(4 * w, 8 * w, 2), *[Residual(8 * w) for _ in range(3)])
        self.lateral = nn.ModuleList([nn.Conv2d(c * w, FPN, 1) for c in (2, 4, 8)])
        self.smooth = nn.ModuleList([nn.Conv2d(FPN, FPN, 3, padding=1) for _ in range(3)])

    def forward(self, x):
        c3 = self.c3(self.stem(x))
        c4 = self.c4(c3)
        p5 = self.lateral[2](self.c5(c4))
        p4 = self.lateral[1](c4) + F.interpolate(p5, scale_factor=2)
        p3 = self.lateral[0](c3) + F.interpolate(p4, scale_factor=2)
        return [s(p) for s, p in zip(self.smooth, (p3, p4, p5))]


def make_anchors():
    out = []
    for s in STRIDES:
        c = (torch.arange(IMAGE // s, device=device) + 0.5) * s
        cy, cx = torch.meshgrid(c, c, indexing="ij")
        for scale in SCALES:
            half = torch.full_like(cx, 2.0 * s * scale)
            out.append(torch.stack([cx - half, cy - half, cx + half, cy + half], -1).view(-1, 1, 4))
    per = len(SCALES)
    return torch.cat([torch.cat(out[i * per:(i + 1) * per], 1).view(-1, 4) for i in range(len(STRIDES))])


def iou(a, b):
    lt = torch.maximum(a[:, None, :2], b[None, :, :2])
    rb = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    inter = (rb - lt).clamp(min=0).prod(-1)
    area = lambda t: (t[:, 2] - t[:, 0]) * (t[:, 3] - t[:, 1])
    return inter / (area(a)[:, None] + area(b)[None] - inter + 1e-6)


def encode(boxes, gt):
    size, gsize = ((t[:, 2:] - t[:, :2]).clamp(min=1) for t in (boxes, gt))
    return torch.cat([((gt[:, 2:] + gt[:, :2]) - (boxes[:, 2:] + boxes[:, :2])) / 2 / size, (gsize / size).log()], 1)


def decode(boxes, delta):
    size = boxes[:, 2:] - boxes[:, :2]
    center = (boxes[:, 2:] + boxes[:, :2]) / 2 + delta[:, :2] * size
    half = size * delta[:, 2:].clamp(-3, 3).exp() / 2
    return torch.cat([center - half, center + half], 1).clamp(0, IMAGE)


def fast_nms(boxes, scores, threshold, limit):
    order = scores.argsort(descending=True)
    boxes = boxes[order]
    overlap = iou(boxes, boxes).triu_(1)
    keep = overlap.amax(0) <= threshold
    return order[keep.nonzero().squeeze(1)[:limit]]


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.rpn = nn.Sequential(nn.Conv2d(FPN, FPN, 3, padding=1), nn.ReLU(inplace=True),
                                 nn.Conv2d(FPN, len(SCALES) * 5, 1))
        self.box = nn.Sequential(nn.Flatten(), nn.Linear(FPN * ROI * ROI, 1024), nn.ReLU(),
                                 nn.Linear(1024, 1024), nn.ReLU())
        self.cls, self.reg = nn.Linear(1024, CLASSES + 1), nn.Linear(1024, 4)
        self.register_buffer("anchors", make_anchors())

    def roi_crop(self, feats, i, boxes):
        level = ((boxes[:, 2:] - boxes[:, :2]).prod(1).clamp(min=1).sqrt() / 64).log2().floor().clamp(0, 2).long()
        steps = (torch.arange(2 * ROI, device=boxes.device) + 0.5) / (2 * ROI)
        out = boxes.new_zeros(len(boxes), FPN, ROI, ROI)
        for l, feat in enumerate(feats):
            idx = (level == l).nonzero().squeeze(1)
            if idx.numel() == 0:
                continue
            b = boxes[idx]
            xs = (b[:, :1] + steps * (b[:, 2:3] - b[:, :1])) / IMAGE * 2 - 1
            ys = (b[:, 1:2] + steps * (b[:, 3:] - b[:, 1:2])) / IMAGE * 2 - 1
            grid = torch.stack([xs[:, None, :].expand(-1, 2 * ROI, -1), ys[:, :, None].expand(-1, -1, 2 * ROI)], -1)
            crop = F.grid_sample(feat[i: i + 1], grid.view(1, -1, 2 * ROI, 2), align_corners=False)
            crop = crop.view(FPN, len(idx), 2 * ROI, 2 * ROI).transpose(0, 1)
            out = out.index_copy(0, idx, F.avg_pool2d(crop, 2))
        return out

    def forward(self, images, targets=None):
        feats = self.backbone(images)
        rpn = torch.cat([self.rpn(f).permute(0, 2, 3, 1).reshape(len(images), -1, 5) for f in feats], 1)
        losses, results = [], []
        for i, (score, delta) in enumerate((r[:, 0], r[:, 1:]) for r in rpn):
            with torch.no_grad():
                top = score.topk(min(PRE_NMS, score.numel())).indices
                props = decode(self.anchors[top], delta[top])
                big = ((props[:, 2:] - props[:, :2]) > 4).all(1)
                props, top = props[big], top[big]
                props = props[fast_nms(props, score[top], 0.7, POST_NMS)]
            if targets is None:
                h = self.box(self.roi_crop(feats, i, props))
                prob, label = self.cls(h).softmax(1)[:, 1:].max(1)
                keep = prob > 0.02
                results.append((decode(props[keep], self.reg(h)[keep]), label[keep]))
                continue
            gt, labels = targets[i]
            best, match = iou(self.anchors, gt).max(1)
            pos, neg = best > 0.5, best < 0.3
            used = pos | neg
            losses.append(F.binary_cross_entropy_with_logits(score[used], pos[used].float()))
            if pos.any():
                losses.append(F.smooth_l1_loss(delta[pos], encode(self.anchors[pos], gt[match[pos]])))
            props = torch.cat([props, gt])
            best, match = iou(props, gt).max(1)
            target = torch.where(best > 0.5, labels[match] + 1, 0)
            h = self.box(self.roi_crop(feats, i, props))
            losses.append(F.cross_entropy(self.cls(h), target))
            fg = target > 0
            losses.append(F.smooth_l1_loss(self.reg(h)[fg], encode(props[fg], gt[match[fg]])))
        return torch.stack(losses).sum() / len(images) if targets is not None else results


def make_batch(g):
    """Noise images with 3 to 30 tinted rectangles each; the tint tells the class."""
    images = torch.randn(BATCH, 3, IMAGE, IMAGE, generator=g) * 0.2
    targets = []
    for i in range(BATCH):
        n = int(torch.randint(3, 31, (1,), generator=g))
        size = 24 + torch.rand(n, 2, generator=g) * IMAGE / 4
        xy = torch.rand(n, 2, generator=g) * (IMAGE - size)
        boxes, labels = torch.cat([xy, xy + size], 1), torch.randint(CLASSES, (n,), generator=g)
        for (x0, y0, x1, y1), c in zip(boxes.int().tolist(), labels.tolist()):
            images[i, c % 3, y0:y1, x0:x1] += 0.2 + c / CLASSES
        targets.append((boxes.to(device), labels.to(device)))
    return images.to(device), targets


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(21)
    model = Detector().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    start = time.time()
    for step in range(STEPS):
        images, targets = make_batch(g)
        loss = model(images, targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f} {time.time() - start:.1f}s")
    model.eval()
    found = hit = 0
    with torch.no_grad():
        for _ in range(EVAL_STEPS):
            images, targets = make_batch(g)
            for (boxes, _), (gt, _) in zip(model(images), targets):
                found += len(boxes)
                hit += int((iou(gt, boxes) > 0.5).any(1).sum())
    print(f"detections {found} recalled {hit} {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
