"""Anchor-free FPN detector (FCOS flavour) on a torchvision ResNet: per-image assignment, top-k + batched NMS eval."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision.models import resnet50
from torchvision.models.feature_extraction import create_feature_extractor
from torchvision.ops import FeaturePyramidNetwork, batched_nms, box_iou, generalized_box_iou_loss, sigmoid_focal_loss

STRIDES = (8, 16, 32)
RANGES = ((0, 64), (64, 128), (128, 1e6))

class Detector(nn.Module):
    def __init__(self, classes, ch=256):
        super().__init__()
        self.body = create_feature_extractor(resnet50(), {"layer2": "0", "layer3": "1", "layer4": "2"})
        self.fpn = FeaturePyramidNetwork([512, 1024, 2048], ch)
        self.cls_tower, self.box_tower = (nn.Sequential(*[m for _ in range(4) for m in (
            nn.Conv2d(ch, ch, 3, padding=1), nn.GroupNorm(32, ch), nn.ReLU(inplace=True))]) for _ in range(2))
        self.cls, self.box, self.ctr = (nn.Conv2d(ch, n, 3, padding=1) for n in (classes, 4, 1))
        nn.init.constant_(self.cls.bias, -math.log(99))
        self.scales = nn.Parameter(torch.ones(len(STRIDES)))
    def forward(self, x):
        cls, box, ctr, pts = [], [], [], []
        for i, f in enumerate(self.fpn(self.body(x)).values()):
            h, w = f.shape[-2:]
            b = self.box_tower(f)
            cls.append(self.cls(self.cls_tower(f)).flatten(2).transpose(1, 2))
            box.append(F.softplus(self.box(b).float() * self.scales[i]).flatten(2).transpose(1, 2) * STRIDES[i])
            ctr.append(self.ctr(b).flatten(2).transpose(1, 2))
            ys, xs = torch.meshgrid(torch.arange(h, device=x.device), torch.arange(w, device=x.device), indexing="ij")
            pts.append((torch.stack([xs, ys], -1).view(-1, 2) + 0.5) * STRIDES[i])
        lvl = torch.cat([torch.full((len(p),), i, device=x.device) for i, p in enumerate(pts)])
        return torch.cat(cls, 1), torch.cat(box, 1), torch.cat(ctr, 1), torch.cat(pts), lvl

def assign(pts, lvl, boxes):
    ltrb = torch.cat([pts[:, None] - boxes[None, :, :2], boxes[None, :, 2:] - pts[:, None]], -1)
    far = ltrb.amax(-1)
    lo, hi = torch.tensor(RANGES, device=pts.device)[lvl].unbind(-1)
    ok = (ltrb.amin(-1) > 0) & (far >= lo[:, None]) & (far < hi[:, None])
    area = (boxes[:, 2:] - boxes[:, :2]).prod(-1).expand(len(pts), -1).masked_fill(~ok, float("inf"))
    best, idx = area.min(-1)
    return idx, best < float("inf"), ltrb

def losses(out, targets, classes):
    cls, box, ctr, pts, lvl = out
    l_cls = l_box = l_ctr = 0.0
    npos = 1
    for i, (gt, labels) in enumerate(targets):
        idx, pos, ltrb = assign(pts, lvl, gt)
        hot = torch.zeros_like(cls[i], dtype=torch.float32)
        hot[pos, labels[idx[pos]]] = 1.0
        l_cls = l_cls + sigmoid_focal_loss(cls[i].float(), hot, reduction="sum")
        if pos.any():
            p, b = pts[pos], box[i][pos]
            pred = torch.cat([p - b[:, :2], p + b[:, 2:]], -1)
            l_box = l_box + generalized_box_iou_loss(pred, gt[idx[pos]], reduction="sum")
            t = ltrb[pos, idx[pos]].view(-1, 2, 2)
            cen = (t.amin(1) / t.amax(1)).prod(-1).sqrt()
            l_ctr = l_ctr + F.binary_cross_entropy_with_logits(ctr[i][pos, 0].float(), cen, reduction="sum")
            npos += int(pos.sum())
    return (l_cls + l_box + l_ctr) / npos

@torch.no_grad()
def postprocess(out, k=1000, keep=100):
    cls, box, ctr, pts, _ = out
    res = []
    for c, b, q in zip(cls, box, ctr):
        score, flat = (c.float().sigmoid() * q.float().sigmoid()).sqrt().flatten().topk(k)
        sel, lab = flat // c.shape[1], flat % c.shape[1]
        xy = torch.cat([pts[sel] - b[sel, :2], pts[sel] + b[sel, 2:]], -1)
        n = batched_nms(xy, score, lab, 0.6)[:keep]
        res.append((xy[n], score[n], lab[n]))
    return res

def sample(n, hw, classes):
    imgs, targets = torch.randn(n, 3, *hw, device="cuda"), []
    for i in range(n):
        m = int(torch.randint(1, 30, (1,)))
        c = torch.rand(m, 2, device="cuda") * torch.tensor([hw[1], hw[0]], device="cuda")
        s = 16 + torch.rand(m, 2, device="cuda") * (min(hw) / 3)
        targets.append((torch.cat([c - s / 2, c + s / 2], -1), torch.randint(classes, (m,), device="cuda")))
    return imgs, targets

def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--sizes", type=int, nargs="+", default=[480, 544, 640])
    ap.add_argument("--steps", type=int, default=9)
    ap.add_argument("--topk", type=int, default=1000)
    a = ap.parse_args()
    torch.manual_seed(29)
    classes = 80
    model = Detector(classes).to("cuda", memory_format=torch.channels_last)
    opt = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
    for step in range(a.steps):
        s = a.sizes[step % len(a.sizes)]  # multi-scale training
        imgs, targets = sample(a.batch, (s, s * 5 // 4), classes)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = model(imgs.contiguous(memory_format=torch.channels_last))
        loss = losses(out, targets, classes)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        opt.step()
        print(f"step {step} size {s} loss {loss.item():.4f}")
        if step % 4 == 3:
            model.eval()
            imgs, targets = sample(a.batch, (max(a.sizes), max(a.sizes)), classes)
            with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
                dets = postprocess(model(imgs), a.topk)
            iou = torch.stack([box_iou(t[0], d[0]).amax(1).mean() for t, d in zip(targets, dets)]).mean()
            print(f"  eval recall-iou {iou.item():.4f} dets {sum(len(d[0]) for d in dets)}")
            model.train()

if __name__ == "__main__":
    main()
