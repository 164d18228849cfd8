# FCOS detector from torchvision, trained from scratch on drone-like frames of many sizes.
import argparse
import random
import tempfile
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection import fcos_resnet50_fpn

SIZES = [(427, 640), (480, 605), (375, 500), (611, 433), (500, 333), (540, 717), (389, 571)]


class Frames(Dataset):
    """Noise background with bright rectangles; one box per rectangle."""

    def __init__(self, n, classes, seed, scale=1.0):
        self.n, self.classes, self.seed = n, classes, seed
        self.sizes = [(int(h * scale), int(w * scale)) for h, w in SIZES]

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = random.Random(self.seed * 100003 + i)
        g = torch.Generator().manual_seed(self.seed * 7919 + i)
        h, w = self.sizes[rng.randrange(len(self.sizes))]
        img = torch.rand(3, h, w, generator=g) * 0.3
        boxes, labels = [], []
        for _ in range(rng.randint(1, 9)):
            bw, bh = rng.randint(w // 12, w // 3), rng.randint(h // 12, h // 3)
            x, y = rng.randint(0, w - bw - 1), rng.randint(0, h - bh - 1)
            label = rng.randint(1, self.classes - 1)
            img[label % 3, y:y + bh, x:x + bw] += 0.5
            boxes.append([x, y, x + bw, y + bh])
            labels.append(label)
        target = {
            "boxes": torch.tensor(boxes, dtype=torch.float32),
            "labels": torch.tensor(labels, dtype=torch.int64),
            "image_id": i,
        }
        return img, target


def collate(batch):
    return tuple(zip(*batch))


def move(images, targets, device):
    images = [im.to(device, non_blocking=True) for im in images]
    targets = [{k: v.to(device) if torch.is_tensor(v) else v for k, v in t.items()} for t in targets]
    return images, targets


def warmup_factor(steps):
    return lambda it: min(1.0, (it + 1) / steps)


def train(model, loader, opt, sched, device):
    model.train()
    start = time.time()
    for it, (images, targets) in enumerate(loader):
        images, targets = move(images, targets, device)
        losses = model(images, targets)
        loss = sum(losses.values())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 10.0)
        opt.step()
        sched.step()
        if it % 10 == 0:
            parts = " ".join(f"{k} {v.item():.3f}" for k, v in losses.items())
            print(f"it {it} loss {loss.item():.3f} ({parts}) {time.time() - start:.1f}s", flush=True)


@torch.inference_mode()
def evaluate(model, loader, device):
    model.eval()
    found = images_seen = 0
    for images, _ in loader:
        images = [im.to(device) for im in images]
        outputs = model(images)
        found += sum(int((o["scores"] > 0.5).sum()) for o in outputs)
        images_seen += len(images)
    return found / images_seen


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--classes", type=int, default=12)
    ap.add_argument("--batch", type=int, default=5)
    ap.add_argument("--iters", type=int, default=48)
    ap.add_argument("--min-size", type=int, nargs="+", default=[416, 448, 480])
    ap.add_argument("--max-size", type=int, default=704)
    ap.add_argument("--scale", type=float, default=1.0)
    ap.add_argument("--lr", type=float, default=0.002)
    ap.add_argument("--workers", type=int, default=2)
    args = ap.parse_args()

    random.seed(5)
    torch.manual_seed(5)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    device = torch.device("cuda")

    model = fcos_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=args.classes, trainable_backbone_layers=5,
        min_size=tuple(args.min_size), max_size=args.max_size, score_thresh=0.3, detections_per_img=60,
    )
    model.to(device)
    params = [p for p in model.parameters() if p.requires_grad]
    print(f"{sum(p.numel() for p in params) / 1e6:.1f}M trainable parameters")
    opt = torch.optim.SGD(params, lr=args.lr, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, warmup_factor(20))

    train_loader = DataLoader(Frames(args.iters * args.batch, args.classes, 1, args.scale), batch_size=args.batch,
                              shuffle=True, num_workers=args.workers, collate_fn=collate)
    val_loader = DataLoader(Frames(18, args.classes, 2, args.scale), batch_size=3, collate_fn=collate)

    train(model, train_loader, opt, sched, device)
    print(f"confident detections per image {evaluate(model, val_loader, device):.2f}")
    with tempfile.TemporaryDirectory() as tmp:
        torch.save(model.state_dict(), Path(tmp) / "fcos.pth")


if __name__ == "__main__":
    main()
