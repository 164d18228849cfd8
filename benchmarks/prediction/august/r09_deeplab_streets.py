"""DeepLabV3 (ResNet-50) street-scene segmentation with the auxiliary head: fp16 GradScaler, poly schedule, mIoU."""
import argparse
import os
import tempfile

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision.models.segmentation import deeplabv3_resnet50

IGNORE = 255


class Streets(Dataset):
    """Blocky label maps; colours follow the labels with noise."""

    def __init__(self, n, height, width, classes, seed):
        self.n, self.h, self.w, self.classes, self.seed = n, height, width, classes, seed
        self.palette = torch.rand(classes, 3, generator=torch.Generator().manual_seed(99))

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + i)
        coarse = torch.randint(0, self.classes, (1, 1, 9, 13), generator=g).float()
        mask = F.interpolate(coarse, size=(self.h, self.w), mode="nearest")[0, 0].long()
        image = self.palette[mask].permute(2, 0, 1)
        image = image + 0.1 * torch.randn(1, self.h, self.w, generator=g)
        mask[:4] = IGNORE
        return (image - 0.45) / 0.25, mask


class Meter:
    def __init__(self, classes):
        self.c = classes
        self.mat = torch.zeros(classes, classes, dtype=torch.int64, device="cuda")

    def add(self, pred, target):
        keep = target != IGNORE
        idx = target[keep] * self.c + pred[keep]
        self.mat += torch.bincount(idx, minlength=self.c ** 2).reshape(self.c, self.c)

    def miou(self):
        inter = self.mat.diag().float()
        union = self.mat.sum(0) + self.mat.sum(1) - self.mat.diag()
        return (inter / union.clamp(min=1)).mean().item()


def criterion(outputs, target):
    main = F.cross_entropy(outputs["out"], target, ignore_index=IGNORE)
    aux = F.cross_entropy(outputs["aux"], target, ignore_index=IGNORE)
    return main + 0.4 * aux


def train_epoch(model, loader, opt, sched, scaler, epoch):
    model.train()
    for it, (x, y) in enumerate(loader):
        x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(opt)
        scaler.update()
        sched.step()
        if it % 4 == 0:
            print(f"epoch {epoch} it {it} loss {loss.item():.4f} lr {sched.get_last_lr()[-1]:.5f}")


@torch.inference_mode()
def evaluate(model, loader, classes):
    model.eval()
    meter = Meter(classes)
    for x, y in loader:
        x, y = x.to("cuda"), y.to("cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            logits = model(x)["out"]
        meter.add(logits.argmax(1), y)
    return meter.miou()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--crop", type=int, nargs=2, default=[321, 401])
    ap.add_argument("--full", type=int, nargs=2, default=[480, 800])
    ap.add_argument("--classes", type=int, default=19)
    ap.add_argument("--batch-size", type=int, default=9)
    ap.add_argument("--images", type=int, default=100)
    ap.add_argument("--val-images", type=int, default=14)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--lr", type=float, default=0.01)
    args = ap.parse_args()
    torch.manual_seed(21)

    model = deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=args.classes, aux_loss=True)
    model = model.to("cuda")
    train = DataLoader(Streets(args.images, *args.crop, args.classes, 0), args.batch_size, shuffle=True,
                       drop_last=True, num_workers=2, pin_memory=True)
    val = DataLoader(Streets(args.val_images, *args.full, args.classes, 10 ** 6), 3)

    groups = [
        {"params": list(model.backbone.parameters()), "lr": args.lr},
        {"params": list(model.classifier.parameters()) + list(model.aux_classifier.parameters()),
         "lr": args.lr * 10},
    ]
    opt = torch.optim.SGD(groups, lr=args.lr, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=args.epochs * len(train), power=0.9)
    scaler = torch.amp.GradScaler("cuda")

    best, path = 0.0, os.path.join(tempfile.mkdtemp(), "deeplab.pth")
    for epoch in range(args.epochs):
        train_epoch(model, train, opt, sched, scaler, epoch)
        miou = evaluate(model, val, args.classes)
        print(f"epoch {epoch} mIoU {miou:.4f}")
        if miou >= best:
            best = miou
            torch.save({"model": model.state_dict(), "scaler": scaler.state_dict()}, path)


if __name__ == "__main__":
    main()
