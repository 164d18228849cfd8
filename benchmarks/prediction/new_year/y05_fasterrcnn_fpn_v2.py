"""Faster R-CNN (ResNet-50 FPN v2) from scratch on synthetic shapes of varying image size."""
import argparse
import os
import tempfile

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection import fasterrcnn_resnet50_fpn_v2
from torchvision.ops import box_iou

SIZES = [(400, 600), (480, 640), (448, 672), (512, 512)]


class Shapes(Dataset):
    def __init__(self, n, classes, seed):
        self.n, self.classes, self.seed = n, classes, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100_003 + i)
        h, w = SIZES[i % len(SIZES)]
        image = torch.rand(3, 1, 1, generator=g).expand(3, h, w).clone()
        count = int(torch.randint(2, 12, (1,), generator=g))
        boxes, labels = [], []
        for _ in range(count):
            bw, bh = torch.randint(24, 160, (2,), generator=g).tolist()
            x, y = int(torch.randint(0, w - bw, (1,), generator=g)), int(torch.randint(0, h - bh, (1,), generator=g))
            label = int(torch.randint(1, self.classes, (1,), generator=g))
            image[:, y:y + bh, x:x + bw] = torch.rand(3, 1, 1, generator=g) * 0.5 + label / (2 * self.classes)
            boxes.append([x, y, x + bw, y + bh])
            labels.append(label)
        target = {"boxes": torch.tensor(boxes, dtype=torch.float32), "labels": torch.tensor(labels), "image_id": i}
        return image, target


def collate(batch):
    return tuple(zip(*batch))


def to_device(images, targets):
    images = [x.to("cuda", non_blocking=True) for x in images]
    targets = [{"boxes": t["boxes"].to("cuda"), "labels": t["labels"].to("cuda")} for t in targets]
    return images, targets


def train(model, loader, opt, sched, log_every=5):
    model.train()
    for step, batch in enumerate(loader):
        images, targets = to_device(*batch)
        losses = model(images, targets)
        loss = sum(losses.values())
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        sched.step()
        if step % log_every == 0:
            parts = " ".join(f"{k.replace('loss_', '')} {v.item():.3f}" for k, v in losses.items())
            print(f"step {step} total {loss.item():.3f} {parts} lr {opt.param_groups[0]['lr']:.4f}")


@torch.no_grad()
def recall(model, loader, threshold=0.5):
    model.eval()
    found = total = 0
    for images, targets in loader:
        outputs = model([x.to("cuda") for x in images])
        for out, target in zip(outputs, targets):
            total += len(target["boxes"])
            if len(out["boxes"]):
                best = box_iou(target["boxes"], out["boxes"].cpu()).max(1).values
                found += int((best > threshold).sum())
    return found / max(total, 1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--classes", type=int, default=12)
    p.add_argument("--batch-size", type=int, default=5)
    p.add_argument("--images", type=int, default=160)
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--min-size", type=int, default=448)
    p.add_argument("--max-size", type=int, default=672)
    p.add_argument("--lr", type=float, default=0.004)
    args = p.parse_args()
    torch.manual_seed(5)

    model = fasterrcnn_resnet50_fpn_v2(weights=None, weights_backbone=None, num_classes=args.classes,
                                       min_size=args.min_size, max_size=args.max_size, box_detections_per_img=60)
    model.to("cuda")
    train_loader = DataLoader(Shapes(args.images, args.classes, 1), args.batch_size, shuffle=True, collate_fn=collate,
                              num_workers=2, drop_last=True)
    test_loader = DataLoader(Shapes(18, args.classes, 2), 3, collate_fn=collate)
    params = [t for t in model.parameters() if t.requires_grad]
    opt = torch.optim.SGD(params, lr=args.lr, momentum=0.9, weight_decay=1e-4)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.02, 1.0, total_iters=12)
    steps = torch.optim.lr_scheduler.MultiStepLR(opt, milestones=[24, 28], gamma=0.1)
    sched = torch.optim.lr_scheduler.ChainedScheduler([warm, steps])

    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(args.epochs):
            train(model, train_loader, opt, sched)
            print(f"epoch {epoch} recall@0.5 {recall(model, test_loader):.3f}")
            torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, os.path.join(folder, f"ckpt_{epoch}.pt"))


if __name__ == "__main__":
    main()
