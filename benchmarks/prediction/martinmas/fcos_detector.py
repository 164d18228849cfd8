"""Anchor-free (FCOS-like) detector: torchvision backbone, FPN, focal + GIoU loss, top-k and NMS at evaluation."""
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.ops import FeaturePyramidNetwork, batched_nms, generalized_box_iou_loss, sigmoid_focal_loss

STRIDES = (8, 16, 32)
RANGES = ((0, 64), (64, 128), (128, 1e8))
class Head(nn.Module):
    def __init__(self, ch, classes, convs=4):
        super().__init__()
        def tower():
            return nn.Sequential(*(nn.Sequential(nn.Conv2d(ch, ch, 3, padding=1), nn.GroupNorm(32, ch), nn.ReLU())
                                   for _ in range(convs)))
        self.cls_tower, self.reg_tower = tower(), tower()
        self.cls, self.reg, self.ctr = (nn.Conv2d(ch, o, 3, padding=1) for o in (classes, 4, 1))
        self.scales = nn.Parameter(torch.ones(len(STRIDES)))
        nn.init.constant_(self.cls.bias, -4.6)
    def forward(self, feats):
        cls, reg, ctr, pts = [], [], [], []
        for i, f in enumerate(feats):
            c, r = self.cls_tower(f), self.reg_tower(f)
            h, w = f.shape[-2:]
            ys, xs = torch.meshgrid(torch.arange(h, device=f.device), torch.arange(w, device=f.device), indexing="ij")
            pts.append((torch.stack([xs, ys], -1).reshape(-1, 2).float() + 0.5) * STRIDES[i])
            cls.append(self.cls(c).flatten(2).transpose(1, 2))
            reg.append((F.softplus(self.reg(r).float() * self.scales[i]) * STRIDES[i]).flatten(2).transpose(1, 2))
            ctr.append(self.ctr(r).flatten(2).transpose(1, 2))
        return torch.cat(cls, 1).float(), torch.cat(reg, 1), torch.cat(ctr, 1).float(), pts
class Detector(nn.Module):
    def __init__(self, classes, ch=256):
        super().__init__()
        body = torchvision.models.resnet50(weights=None)
        self.body = IntermediateLayerGetter(body, {"layer2": "0", "layer3": "1", "layer4": "2"})
        self.fpn = FeaturePyramidNetwork([512, 1024, 2048], ch)
        self.head = Head(ch, classes)
    def forward(self, x):
        return self.head(list(self.fpn(self.body(x)).values()))
def assign(points, boxes, labels, classes):
    """Targets of one image: smallest box that contains the point and fits the level's range."""
    pts = torch.cat(points)
    lim = torch.cat([pts.new_tensor(r).expand(len(p), 2) for p, r in zip(points, RANGES)])
    lt = pts[:, None] - boxes[None, :, :2]
    rb = boxes[None, :, 2:] - pts[:, None]
    ltrb = torch.cat([lt, rb], -1)
    size = ltrb.amax(-1)
    ok = (ltrb.amin(-1) > 0) & (size >= lim[:, :1]) & (size < lim[:, 1:])
    area = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))[None].expand_as(ok)
    best, idx = area.masked_fill(~ok, float("inf")).min(1)
    onehot = F.one_hot(labels[idx], classes).float()
    fg = torch.isfinite(best)
    return onehot * fg[:, None], ltrb[torch.arange(len(pts), device=pts.device), idx], fg
def decode(pts, ltrb):
    return torch.cat([pts - ltrb[..., :2], pts + ltrb[..., 2:]], -1)
def loss_fn(out, targets, classes):
    cls, reg, ctr, points = out
    t = [assign(points, b, l, classes) for b, l in targets]
    onehot, ltrb, fg = (torch.stack(z) for z in zip(*t))
    pts = torch.cat(points).expand(cls.size(0), -1, -1)[fg]
    n = fg.sum().clamp(min=1)
    l_cls = sigmoid_focal_loss(cls, onehot, reduction="sum") / n
    d = ltrb[fg]
    l_box = generalized_box_iou_loss(decode(pts, reg[fg]), decode(pts, d), reduction="sum") / n
    lr, tb = d[:, 0::2], d[:, 1::2]
    cent = torch.sqrt((lr.amin(1) / lr.amax(1)) * (tb.amin(1) / tb.amax(1)))
    l_ctr = F.binary_cross_entropy_with_logits(ctr[fg].squeeze(1), cent)
    return l_cls, l_box, l_ctr
@torch.no_grad()
def detect(model, images, k=1000, thr=0.6):
    model.eval()
    cls, reg, ctr, points = model(images)
    scores = (cls.sigmoid() * ctr.sigmoid()).sqrt()
    pts, results = torch.cat(points), []
    for s, r in zip(scores, reg):
        top, flat = s.flatten().topk(k)
        loc, lab = flat // s.size(1), flat % s.size(1)
        boxes = decode(pts[loc], r[loc])
        keep = batched_nms(boxes, top, lab, thr)[:100]
        results.append((boxes[keep], top[keep], lab[keep]))
    model.train()
    return results
def batch_of(n, h, w, classes, device):
    targets = []
    for _ in range(n):
        m = int(torch.randint(3, 40, (1,)))
        wh = torch.rand(m, 2) * torch.tensor([w / 2.0, h / 2.0]) + 12
        xy = torch.rand(m, 2) * (torch.tensor([w, h]) - wh)
        targets.append((torch.cat([xy, xy + wh], 1).to(device), torch.randint(classes, (m,)).to(device)))
    return torch.randn(n, 3, h, w).to(device), targets
def main():
    p = argparse.ArgumentParser()
    for k, v in dict(steps=8, batch=8, classes=80).items():
        p.add_argument(f"--{k}", type=int, default=v)
    p.add_argument("--sizes", type=int, nargs="+", default=[512, 640, 576])
    p.add_argument("--device", default="cuda")
    a = p.parse_args()
    torch.manual_seed(3)
    model = Detector(a.classes).to(a.device)
    opt = torch.optim.SGD(model.parameters(), lr=2e-3, momentum=0.9, weight_decay=1e-4)
    for step in range(a.steps):
        h = a.sizes[step % len(a.sizes)]
        w = a.sizes[(step + 1) % len(a.sizes)]
        images, targets = batch_of(a.batch, h, w, a.classes, a.device)
        with torch.autocast(a.device, dtype=torch.bfloat16):
            out = model(images)
        parts = loss_fn(out, targets, a.classes)
        loss = sum(parts)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        opt.step()
        print(f"step {step} {h}x{w} loss {loss.item():.3f} (" + " ".join(f"{x.item():.3f}" for x in parts) + ")")
        if step % 4 == 3:
            res = detect(model, images[:4])
            print("  kept", [len(r[0]) for r in res])
if __name__ == "__main__":
    main()
