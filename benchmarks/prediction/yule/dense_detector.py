"""One-stage detector (ResNet-50 FPN trunk, RetinaNet-like head) with ragged ground truth; eval with topk + NMS."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import batched_nms, box_convert, box_iou, sigmoid_focal_loss
from torchvision.ops.feature_pyramid_network import LastLevelP6P7


class Head(nn.Module):
    def __init__(self, classes, anchors, ch=256):
        super().__init__()
        self.classes = classes
        def block():
            return [nn.Conv2d(ch, ch, 3, padding=1), nn.GroupNorm(32, ch), nn.ReLU(inplace=True)]
        self.ct, self.bt = (nn.Sequential(*block(), *block(), *block()) for _ in range(2))
        self.cls = nn.Conv2d(ch, anchors * classes, 3, padding=1)
        self.box = nn.Conv2d(ch, anchors * 4, 3, padding=1)
        nn.init.constant_(self.cls.bias, -4.6)

    def forward(self, feats):
        cls, box = [], []
        for f in feats:
            c, b = self.cls(self.ct(f)), self.box(self.bt(f))
            cls.append(c.permute(0, 2, 3, 1).reshape(c.size(0), -1, self.classes))
            box.append(b.permute(0, 2, 3, 1).reshape(b.size(0), -1, 4))
        return torch.cat(cls, 1), torch.cat(box, 1)


def encode(gt, an):
    g, a = box_convert(gt, "xyxy", "cxcywh"), box_convert(an, "xyxy", "cxcywh")
    return torch.cat([(g[:, :2] - a[:, :2]) / a[:, 2:], (g[:, 2:] / a[:, 2:]).log()], 1)


def decode(d, an):
    a = box_convert(an, "xyxy", "cxcywh")
    return box_convert(torch.cat([d[:, :2] * a[:, 2:] + a[:, :2], a[:, 2:] * d[:, 2:].clamp(max=4).exp()], 1),
                       "cxcywh", "xyxy")


def detection_loss(cls, box, anchors, targets):
    losses = []
    for c, b, (gt, lab) in zip(cls, box, targets):
        iou = box_iou(gt, anchors)
        best, idx = iou.max(0)
        idx[iou.argmax(1)] = torch.arange(len(gt), device=gt.device)
        best[iou.argmax(1)] = 1.0
        pos, used = best >= 0.5, (best >= 0.5) | (best < 0.4)
        onehot = torch.zeros_like(c)
        onehot[pos, lab[idx[pos]]] = 1.0
        lc = sigmoid_focal_loss(c[used], onehot[used], reduction="sum")
        lb = F.smooth_l1_loss(b[pos], encode(gt[idx[pos]], anchors[pos]), beta=0.1, reduction="sum")
        losses.append((lc + lb) / pos.sum().clamp(min=1))
    return torch.stack(losses).mean()


def detect(cls, box, anchors, k=1000, thresh=0.005):
    found = []
    for c, b in zip(cls, box):
        score, flat = c.sigmoid().flatten().topk(min(k, c.numel()))
        score, flat = score[score > thresh], flat[score > thresh]
        lab, flat = flat % c.size(1), flat // c.size(1)
        xy = decode(b[flat], anchors[flat])
        keep = batched_nms(xy, score, lab, 0.5)[:100]
        found.append((xy[keep], score[keep], lab[keep]))
    return found


def make_batch(n, size, classes, device):
    targets = []
    for m in torch.randint(1, 40, (n,)).tolist():
        xy = torch.rand(m, 2) * (torch.tensor([size[1], size[0]]) - 64.0)
        targets.append((torch.cat([xy, xy + torch.rand(m, 2) * 200 + 16], 1).to(device), torch.randint(0, classes, (m,)).to(device)))
    return torch.rand(n, 3, *size).to(device), targets


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--device", default="cuda")
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--scale", type=int, default=20, help="image sides are multiples of 32 near 32*scale")
    a = p.parse_args()
    torch.manual_seed(3)
    trunk = resnet_fpn_backbone(backbone_name="resnet50", weights=None, trainable_layers=5,
                                norm_layer=nn.BatchNorm2d, returned_layers=[2, 3, 4],
                                extra_blocks=LastLevelP6P7(256, 256)).to(a.device)
    head = Head(80, 9).to(a.device)
    cells = AnchorGenerator(tuple((s, int(s * 1.26), int(s * 1.59)) for s in (32, 64, 128, 256, 512)),
                            ((0.5, 1.0, 2.0),) * 5)
    params = list(trunk.parameters()) + list(head.parameters())
    opt = torch.optim.SGD(params, lr=0.005, momentum=0.9, weight_decay=1e-4)
    for step in range(a.steps):
        size = (32 * (a.scale + int(torch.randint(-3, 4, (1,)))), 32 * (a.scale + int(torch.randint(-3, 4, (1,)))))
        x, targets = make_batch(a.batch, size, 80, a.device)
        with torch.autocast(a.device, dtype=torch.bfloat16):
            cls, box = head(feats := list(trunk(x).values()))
        anchors = cells(ImageList(x, [size] * len(x)), [f.float() for f in feats])[0]
        loss = detection_loss(cls.float(), box.float(), anchors, targets)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} size {size} loss {loss.item():.4f}")
        if step % 5 == 4:
            trunk.eval(), head.eval()
            with torch.inference_mode(), torch.autocast(a.device, dtype=torch.bfloat16):
                x, _ = make_batch(a.batch * 2, (32 * a.scale + 32, 32 * a.scale), 80, a.device)
                cls, box = head(feats := list(trunk(x).values()))
                an = cells(ImageList(x, [tuple(x.shape[-2:])] * len(x)), [f.float() for f in feats])
                found = detect(cls.float(), box.float(), an[0])
            print("  detections per image", [len(s) for _, s, _ in found])
            trunk.train(), head.train()


if __name__ == "__main__":
    main()
