"""One-stage detection with torchvision's FCOS (ResNet-50 FPN, BatchNorm trained), images of many sizes, multi-scale training.

fp32 without TF32, SGD with nesterov momentum, step decay, evaluation by a simple AP at IoU 0.5.
"""
import argparse
import os
import tempfile

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection import fcos_resnet50_fpn
from torchvision.ops import box_iou


class Shapes(Dataset):
    """Frames with a number of bright boxes; sizes differ from frame to frame."""

    def __init__(self, n, classes, low, high, seed):
        g = torch.Generator().manual_seed(seed)
        self.classes, self.seed = classes, seed
        self.sizes = torch.randint(low, high + 1, (n, 2), generator=g).tolist()
        self.counts = torch.randint(2, 18, (n,), generator=g).tolist()

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + 7919 * i)
        h, w = self.sizes[i]
        image = torch.full((3, h, w), 0.4)
        boxes, labels = [], []
        for _ in range(self.counts[i]):
            bw, bh = (12 + torch.rand(2, generator=g) * torch.tensor([w * 0.4, h * 0.4])).tolist()
            x, y = (torch.rand(2, generator=g) * torch.tensor([w - bw - 1, h - bh - 1])).tolist()
            c = int(torch.randint(1, self.classes, (1,), generator=g))
            image[c % 3, int(y): int(y + bh), int(x): int(x + bw)] = 0.3 + 0.7 * c / self.classes
            boxes.append([x, y, x + bw, y + bh])
            labels.append(c)
        return image, {"boxes": torch.tensor(boxes), "labels": torch.tensor(labels)}


def collate(batch):
    return tuple(zip(*batch))


def average_precision(detections, truths, iou=0.5):
    """Class-blind AP over the whole set."""
    rows, total = [], 0
    for det, gt in zip(detections, truths):
        total += len(gt["boxes"])
        taken = set()
        if len(det["boxes"]) == 0:
            continue
        overlap, which = box_iou(det["boxes"], gt["boxes"]).max(1)
        for s, o, k in zip(det["scores"].tolist(), overlap.tolist(), which.tolist()):
            good = o >= iou and k not in taken
            if good:
                taken.add(k)
            rows.append((s, good))
    if not rows:
        return 0.0
    rows.sort(reverse=True)
    hits = torch.tensor([float(r[1]) for r in rows]).cumsum(0)
    precision = hits / torch.arange(1, len(rows) + 1)
    return float((precision * torch.tensor([float(r[1]) for r in rows])).sum() / max(1, total))


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    detections, truths = [], []
    for images, targets in loader:
        out = model([im.to(device) for im in images])
        detections += [{k: v.cpu() for k, v in o.items()} for o in out]
        truths += targets
    model.train()
    return average_precision(detections, truths), sum(len(d["boxes"]) for d in detections)


def train_one_epoch(model, loader, opt, sched, device, clip):
    for k, (images, targets) in enumerate(loader):
        images = [im.to(device, non_blocking=True) for im in images]
        targets = [{n: v.to(device, non_blocking=True) for n, v in t.items()} for t in targets]
        losses = model(images, targets)
        loss = sum(losses.values())
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        sched.step()
        if k % 6 == 0:
            parts = ", ".join(f"{n} {v.item():.3f}" for n, v in losses.items())
            print(f"  iter {k}: {loss.item():.3f} ({parts})", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--classes", type=int, default=9)
    ap.add_argument("--batch", type=int, default=6)
    ap.add_argument("--images", type=int, default=108)
    ap.add_argument("--low", type=int, default=280)
    ap.add_argument("--high", type=int, default=520)
    ap.add_argument("--scales", type=int, nargs="+", default=[416, 480, 544])
    ap.add_argument("--max-size", type=int, default=800)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--lr", type=float, default=0.004)
    args = ap.parse_args()
    torch.manual_seed(3)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    device = torch.device("cuda")

    model = fcos_resnet50_fpn(weights=None, weights_backbone=None, num_classes=args.classes, min_size=tuple(args.scales),
                              max_size=args.max_size, detections_per_img=60, topk_candidates=400)
    model.to(device).train()
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.SGD(params, lr=args.lr, momentum=0.9, weight_decay=1e-4, nesterov=True)
    train = DataLoader(Shapes(args.images, args.classes, args.low, args.high, 10), args.batch, shuffle=True, collate_fn=collate,
                       num_workers=2, persistent_workers=True)
    valid = DataLoader(Shapes(20, args.classes, args.low, args.high, 20), 4, collate_fn=collate)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.01, total_iters=8)
    steps = torch.optim.lr_scheduler.MultiStepLR(opt, [len(train)], gamma=0.1)
    sched = torch.optim.lr_scheduler.SequentialLR(opt, [warm, steps], milestones=[8])

    with tempfile.TemporaryDirectory() as tmp:
        for epoch in range(args.epochs):
            train_one_epoch(model, train, opt, sched, device, clip=10.0)
            ap50, found = evaluate(model, valid, device)
            print(f"epoch {epoch}: AP50 {ap50:.4f} from {found} detections", flush=True)
            torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "epoch": epoch}, os.path.join(tmp, "last.pt"))
        print("checkpoint", os.path.getsize(os.path.join(tmp, "last.pt")) // 2 ** 20, "MiB")


if __name__ == "__main__":
    main()
