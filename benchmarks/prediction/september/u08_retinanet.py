"""RetinaNet on synthetic street scenes with images of many sizes."""
import argparse
import random

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection import retinanet_resnet50_fpn_v2


class Scenes(Dataset):
    """Rectangles on noise. Landscape and portrait images of different sizes."""

    SIZES = [(360, 520), (404, 608), (480, 480), (600, 420), (333, 500), (450, 640)]

    def __init__(self, n, classes, seed):
        self.n, self.classes, self.seed = n, classes, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = random.Random(self.seed * 10007 + i)
        g = torch.Generator().manual_seed(self.seed * 10007 + i)
        h, w = rng.choice(self.SIZES)
        img = 0.3 * torch.rand(3, h, w, generator=g)
        boxes, labels = [], []
        for _ in range(rng.randint(1, 9)):
            bw, bh = rng.randint(24, w // 2), rng.randint(24, h // 2)
            x, y = rng.randint(0, w - bw - 1), rng.randint(0, h - bh - 1)
            c = rng.randint(1, self.classes - 1)
            img[c % 3, y:y + bh, x:x + bw] += 0.1 + 0.6 * c / self.classes
            boxes.append([x, y, x + bw, y + bh])
            labels.append(c)
        target = {"boxes": torch.tensor(boxes, dtype=torch.float32), "labels": torch.tensor(labels),
                  "image_id": torch.tensor(i)}
        return img.clamp_(0, 1), target


def collate(batch):
    return tuple(zip(*batch))


def to_device(images, targets, device):
    images = [im.to(device, non_blocking=True) for im in images]
    targets = [{k: v.to(device, non_blocking=True) for k, v in t.items()} for t in targets]
    return images, targets


def iou_matrix(a, b):
    lt = torch.maximum(a[:, None, :2], b[None, :, :2])
    rb = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    inter = (rb - lt).clamp(min=0).prod(-1)
    area = lambda x: (x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1])
    return inter / (area(a)[:, None] + area(b)[None] - inter + 1e-6)


@torch.no_grad()
def recall_at_50(model, loader, device):
    model.eval()
    found = total = 0
    for images, targets in loader:
        images, targets = to_device(images, targets, device)
        for out, t in zip(model(images), targets):
            total += len(t["boxes"])
            if len(out["boxes"]):
                found += (iou_matrix(t["boxes"], out["boxes"]).amax(1) > 0.5).sum().item()
    model.train()
    return found / max(1, total)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--classes", type=int, default=14)
    parser.add_argument("--batch", type=int, default=6)
    parser.add_argument("--min-size", type=int, nargs="+", default=[400, 448, 496])
    parser.add_argument("--max-size", type=int, default=760)
    parser.add_argument("--train-images", type=int, default=240)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=29)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    device = torch.device("cuda")

    model = retinanet_resnet50_fpn_v2(weights=None, weights_backbone=None, num_classes=args.classes,
                                      min_size=args.min_size, max_size=args.max_size, detections_per_img=100)
    model.to(device)
    model.train()
    backbone = [p for n, p in model.named_parameters() if n.startswith("backbone.body") and p.requires_grad]
    rest = [p for n, p in model.named_parameters() if not n.startswith("backbone.body") and p.requires_grad]
    optimizer = torch.optim.AdamW([{"params": backbone, "lr": args.lr * 0.5}, {"params": rest}], lr=args.lr,
                                  weight_decay=0.05)
    train = DataLoader(Scenes(args.train_images, args.classes, 1), args.batch, shuffle=True, collate_fn=collate,
                       num_workers=2)
    valid = DataLoader(Scenes(24, args.classes, 2), 4, collate_fn=collate)
    steps = len(train)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [int(steps * 0.7), int(steps * 0.9)], gamma=0.1)

    for step, (images, targets) in enumerate(train, 1):
        images, targets = to_device(images, targets, device)
        losses = model(images, targets)
        loss = sum(losses.values())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], 1.0)
        optimizer.step()
        scheduler.step()
        if step % 10 == 0:
            parts = " ".join(f"{k} {v.item():.3f}" for k, v in losses.items())
            print(f"step {step}/{steps} loss {loss.item():.3f} ({parts})", flush=True)
    print(f"recall@0.5: {recall_at_50(model, valid, device):.3f}")


if __name__ == "__main__":
    main()
