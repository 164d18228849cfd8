"""Train a two-stage detector on a synthetic warehouse-parts dataset, then score it on a held-out split."""
import argparse
import logging
import math
import time

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.rpn import AnchorGenerator
from torchvision.ops import box_iou

log = logging.getLogger("detect")


class PartsDataset(Dataset):
    """Grey conveyor belts with coloured rectangular parts; image sizes vary from camera to camera."""

    CAMERAS = [(486, 648), (540, 722), (601, 803), (512, 900), (720, 540)]

    def __init__(self, length, num_classes, seed, scale=1.0):
        self.length = length
        self.num_classes = num_classes
        self.seed = seed
        self.scale = scale

    def __len__(self):
        return self.length

    def __getitem__(self, idx):
        g = torch.Generator().manual_seed(self.seed * 100003 + idx)
        h, w = self.CAMERAS[int(torch.randint(len(self.CAMERAS), (1,), generator=g))]
        h, w = int(h * self.scale), int(w * self.scale)
        img = torch.randint(90, 130, (3, h, w), generator=g, dtype=torch.uint8)
        n = int(torch.randint(3, 19, (1,), generator=g))
        boxes, labels = [], []
        for _ in range(n):
            bw = int(torch.randint(int(w * 0.05), int(w * 0.3), (1,), generator=g))
            bh = int(torch.randint(int(h * 0.05), int(h * 0.3), (1,), generator=g))
            x = int(torch.randint(0, w - bw, (1,), generator=g))
            y = int(torch.randint(0, h - bh, (1,), generator=g))
            cls = int(torch.randint(1, self.num_classes, (1,), generator=g))
            img[cls % 3, y:y + bh, x:x + bw] = 20 + 210 * cls // self.num_classes
            boxes.append([x, y, x + bw, y + bh])
            labels.append(cls)
        target = {"boxes": torch.tensor(boxes, dtype=torch.float32), "labels": torch.tensor(labels)}
        return img, target


def collate(batch):
    images, targets = zip(*batch)
    return list(images), list(targets)


def build_model(args):
    backbone = resnet_fpn_backbone(backbone_name=args.backbone, weights=None, trainable_layers=5)
    anchors = AnchorGenerator(sizes=((24,), (48,), (96,), (192,), (384,)), aspect_ratios=((0.5, 1.0, 2.0),) * 5)
    return FasterRCNN(backbone, num_classes=args.num_classes, min_size=args.min_size, max_size=args.max_size,
                      rpn_anchor_generator=anchors, rpn_batch_size_per_image=192, box_batch_size_per_image=384,
                      rpn_pre_nms_top_n_train=1500, rpn_post_nms_top_n_train=1000, box_detections_per_img=60)


def to_device(images, targets, device):
    images = [im.to(device, non_blocking=True).float().div_(255) for im in images]
    targets = [{k: v.to(device, non_blocking=True) for k, v in t.items()} for t in targets]
    return images, targets


def lr_at(step, total, base, warmup):
    if step < warmup:
        return base * (step + 1) / warmup
    return base * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def train(model, loader, args, device):
    decay = [p for n, p in model.named_parameters() if p.requires_grad and p.ndim > 1]
    rest = [p for n, p in model.named_parameters() if p.requires_grad and p.ndim <= 1]
    opt = torch.optim.SGD([{"params": decay, "weight_decay": 1e-4}, {"params": rest, "weight_decay": 0.0}],
                          lr=args.lr, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda", init_scale=1024.0)
    model.train()
    total = args.epochs * len(loader)
    step = 0
    for epoch in range(args.epochs):
        for images, targets in loader:
            for group in opt.param_groups:
                group["lr"] = lr_at(step, total, args.lr, args.warmup)
            images, targets = to_device(images, targets, device)
            with torch.autocast(device.type, dtype=torch.float16, enabled=device.type == "cuda"):
                losses = model(images, targets)
                loss = sum(losses.values())
            opt.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            scaler.step(opt)
            scaler.update()
            step += 1
            if step % args.log_every == 0:
                parts = " ".join(f"{k.replace('loss_', '')}={v.item():.3f}" for k, v in losses.items())
                log.info("epoch %d step %d/%d loss=%.3f %s", epoch, step, total, loss.item(), parts)


@torch.inference_mode()
def evaluate(model, loader, device):
    model.eval()
    hits, gts, preds = 0, 0, 0
    for images, targets in loader:
        images, targets = to_device(images, targets, device)
        for out, tgt in zip(model(images), targets):
            gts += len(tgt["boxes"])
            preds += len(out["boxes"])
            if len(out["boxes"]):
                iou = box_iou(tgt["boxes"], out["boxes"])
                same = tgt["labels"][:, None] == out["labels"][None]
                hits += int(((iou > 0.5) & same).any(1).sum())
    log.info("recall@0.5 %.4f  (%d ground truth, %d predictions)", hits / max(gts, 1), gts, preds)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--device", default="cuda")
    p.add_argument("--backbone", default="resnet50")
    p.add_argument("--num-classes", type=int, default=13)
    p.add_argument("--min-size", type=int, default=600)
    p.add_argument("--max-size", type=int, default=1000)
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--train-images", type=int, default=600)
    p.add_argument("--val-images", type=int, default=96)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--lr", type=float, default=0.004)
    p.add_argument("--warmup", type=int, default=40)
    p.add_argument("--workers", type=int, default=6)
    p.add_argument("--image-scale", type=float, default=1.0)
    p.add_argument("--log-every", type=int, default=20)
    p.add_argument("--seed", type=int, default=7)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.manual_seed(args.seed)
    device = torch.device(args.device)

    train_set = PartsDataset(args.train_images, args.num_classes, args.seed, args.image_scale)
    val_set = PartsDataset(args.val_images, args.num_classes, args.seed + 1, args.image_scale)
    opts = dict(num_workers=args.workers, collate_fn=collate, pin_memory=device.type == "cuda")
    gen = torch.Generator().manual_seed(args.seed)
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True, generator=gen, **opts)
    val_loader = DataLoader(val_set, args.batch_size, **opts)

    model = build_model(args).to(device)
    log.info("parameters: %.1fM", sum(q.numel() for q in model.parameters()) / 1e6)
    start = time.time()
    train(model, train_loader, args, device)
    evaluate(model, val_loader, device)
    log.info("finished in %.1fs", time.time() - start)


if __name__ == "__main__":
    main()
