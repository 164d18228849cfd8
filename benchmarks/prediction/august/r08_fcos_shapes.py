"""FCOS (ResNet-50 FPN) trained from scratch on drawn shapes of varied image sizes, fp32, multi-scale."""
import argparse
import os
import tempfile

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection import fcos_resnet50_fpn
from torchvision.ops import box_iou

CLASSES = ("background", "box", "bar", "frame", "cross")


class Shapes(Dataset):
    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100003 + i)

        def r(lo, hi):
            return int(torch.randint(lo, hi, (1,), generator=g))

        h, w = r(300, 620), r(360, 760)
        img = torch.rand(3, 1, 1, generator=g).expand(3, h, w).clone()
        boxes, labels = [], []
        for _ in range(r(2, 9)):
            bw, bh = r(24, w // 3), r(24, h // 3)
            x, y = r(0, w - bw), r(0, h - bh)
            label = r(1, len(CLASSES))
            color = torch.rand(3, 1, 1, generator=g)
            patch = img[:, y:y + bh, x:x + bw]
            if label == 1:
                patch[:] = color
            elif label == 2:
                patch[:, bh // 3: 2 * bh // 3] = color
            elif label == 3:
                inner = patch[:, 6:-6, 6:-6].clone()
                patch[:] = color
                patch[:, 6:-6, 6:-6] = inner
            else:
                patch[:, bh // 2 - 4: bh // 2 + 4] = color
                patch[:, :, bw // 2 - 4: bw // 2 + 4] = color
            boxes.append([x, y, x + bw, y + bh])
            labels.append(label)
        return img, {"boxes": torch.tensor(boxes, dtype=torch.float32), "labels": torch.tensor(labels)}


def collate(batch):
    return tuple(zip(*batch))


def to_cuda(images, targets):
    images = [im.to("cuda") for im in images]
    targets = [{k: v.to("cuda") for k, v in t.items()} for t in targets]
    return images, targets


def train_one_epoch(model, loader, opt, warmup, clip):
    model.train()
    for i, (images, targets) in enumerate(loader):
        images, targets = to_cuda(images, targets)
        losses = model(images, targets)
        loss = sum(losses.values())
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        if warmup is not None:
            warmup.step()
        if i % 5 == 0:
            parts = " ".join(f"{k} {v.item():.3f}" for k, v in losses.items())
            print(f"  [{i}/{len(loader)}] loss {loss.item():.3f} {parts}")


@torch.no_grad()
def evaluate(model, loader, iou_thr=0.5):
    model.eval()
    found = total = preds = 0
    for images, targets in loader:
        images, targets = to_cuda(images, targets)
        for out, tgt in zip(model(images), targets):
            total += len(tgt["boxes"])
            preds += len(out["boxes"])
            if len(out["boxes"]):
                iou = box_iou(tgt["boxes"], out["boxes"])
                same = tgt["labels"][:, None] == out["labels"][None]
                found += ((iou > iou_thr) & same).any(1).sum().item()
    return found / max(total, 1), preds


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--train-images", type=int, default=75)
    ap.add_argument("--val-images", type=int, default=18)
    ap.add_argument("--batch-size", type=int, default=5)
    ap.add_argument("--lr", type=float, default=0.005)
    ap.add_argument("--clip", type=float, default=1.0)
    args = ap.parse_args()
    torch.manual_seed(3)

    model = fcos_resnet50_fpn(weights=None, weights_backbone=None, num_classes=len(CLASSES),
                              trainable_backbone_layers=5, min_size=(384, 416, 448, 480), max_size=720)
    model.to("cuda")

    train = DataLoader(Shapes(args.train_images, 1), args.batch_size, shuffle=True, collate_fn=collate,
                       num_workers=2)
    val = DataLoader(Shapes(args.val_images, 2), 4, collate_fn=collate)

    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.SGD(params, lr=args.lr, momentum=0.9, weight_decay=1e-4)
    step = torch.optim.lr_scheduler.StepLR(opt, step_size=1, gamma=0.3)
    folder = tempfile.mkdtemp(prefix="fcos_")
    for epoch in range(args.epochs):
        warmup = None
        if epoch == 0:
            warmup = torch.optim.lr_scheduler.LinearLR(opt, start_factor=0.01, total_iters=8)
        train_one_epoch(model, train, opt, warmup, args.clip)
        step.step()
        recall, preds = evaluate(model, val)
        print(f"epoch {epoch}: recall@0.5 {recall:.3f}, {preds} detections")
        torch.save(model.state_dict(), os.path.join(folder, f"model_{epoch}.pth"))


if __name__ == "__main__":
    main()
