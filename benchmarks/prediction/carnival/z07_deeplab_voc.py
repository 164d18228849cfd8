"""DeepLabV3 (ResNet-50, output stride 8) in the manner of the torchvision segmentation reference: fp16, SGD, poly."""
import argparse
import os
import random
import tempfile

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision.models.segmentation import deeplabv3_resnet50

SHAPES = [(333, 500), (375, 500), (500, 375), (442, 500), (500, 334)]


class FakeVOC(Dataset):
    """Coloured discs on a noisy ground, at the sizes that PASCAL VOC pictures have."""

    def __init__(self, n, classes, crop=None, seed=0):
        self.n, self.classes, self.crop, self.seed = n, classes, crop, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = random.Random(self.seed * 7919 + i)
        h, w = SHAPES[rng.randrange(len(SHAPES))]
        g = torch.Generator().manual_seed(rng.randrange(2 ** 31))
        image = torch.randn(3, h, w, generator=g) * 0.3
        mask = torch.zeros(h, w, dtype=torch.long)
        yy, xx = torch.arange(h)[:, None], torch.arange(w)[None]
        for _ in range(rng.randint(1, 4)):
            c, r = rng.randrange(1, self.classes), rng.randint(25, 90)
            cy, cx = rng.randrange(h), rng.randrange(w)
            d = (yy - cy) ** 2 + (xx - cx) ** 2
            disc, edge = d < r * r, (d >= r * r) & (d < (r + 3) ** 2)
            for ch in range(3):
                image[ch][disc] += ((c * (ch + 3)) % 11) / 5.0 - 1.0
            mask[disc] = c
            mask[edge] = 255
        if self.crop:
            image, mask = self.random_resized_crop(image, mask, rng)
        return image, mask

    def random_resized_crop(self, image, mask, rng):
        scale = rng.uniform(0.6, 1.6)
        size = [int(s * scale) for s in mask.shape]
        image = F.interpolate(image[None], size=size, mode="bilinear", align_corners=False)[0]
        mask = F.interpolate(mask[None, None].float(), size=size, mode="nearest")[0, 0].long()
        pad_h, pad_w = max(0, self.crop - size[0]), max(0, self.crop - size[1])
        image = F.pad(image, (0, pad_w, 0, pad_h))
        mask = F.pad(mask, (0, pad_w, 0, pad_h), value=255)
        top, left = rng.randint(0, mask.shape[0] - self.crop), rng.randint(0, mask.shape[1] - self.crop)
        image = image[:, top:top + self.crop, left:left + self.crop]
        mask = mask[top:top + self.crop, left:left + self.crop]
        if rng.random() < 0.5:
            image, mask = image.flip(-1), mask.flip(-1)
        return image.contiguous(), mask.contiguous()


class ConfusionMatrix:
    def __init__(self, classes, device):
        self.n = classes
        self.mat = torch.zeros(classes, classes, dtype=torch.int64, device=device)

    def update(self, target, pred):
        keep = target != 255
        index = self.n * target[keep] + pred[keep]
        self.mat += torch.bincount(index, minlength=self.n ** 2).view(self.n, self.n)

    def summary(self):
        m = self.mat.float()
        union = (m.sum(0) + m.sum(1) - m.diag()).clamp(min=1)
        return (m.diag().sum() / m.sum()).item(), (m.diag() / union).mean().item()


def criterion(out, target, aux_weight):
    loss = F.cross_entropy(out["out"], target, ignore_index=255)
    if "aux" in out:
        loss = loss + aux_weight * F.cross_entropy(out["aux"], target, ignore_index=255)
    return loss


@torch.inference_mode()
def evaluate(model, loader, classes, device):
    model.eval()
    confusion = ConfusionMatrix(classes, device)
    for image, target in loader:
        image, target = image.to(device), target.to(device)
        with torch.autocast("cuda", dtype=torch.float16):
            logits = model(image)["out"]
        confusion.update(target.flatten(), logits.argmax(1).flatten())
    return confusion.summary()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--classes", type=int, default=21)
    ap.add_argument("--crop", type=int, default=321)
    ap.add_argument("--batch", type=int, default=11)
    ap.add_argument("--n-train", type=int, default=176)
    ap.add_argument("--n-val", type=int, default=24)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--lr", type=float, default=0.015)
    ap.add_argument("--aux-weight", type=float, default=0.5)
    ap.add_argument("--workers", type=int, default=2)
    args = ap.parse_args()
    torch.manual_seed(5)
    random.seed(5)
    device = torch.device("cuda")

    model = deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=args.classes, aux_loss=True).to(device)
    train = DataLoader(FakeVOC(args.n_train, args.classes, args.crop, 1), batch_size=args.batch, shuffle=True,
                       drop_last=True, num_workers=args.workers, pin_memory=True)
    val = DataLoader(FakeVOC(args.n_val, args.classes, None, 2), batch_size=1)
    groups = [{"params": model.backbone.parameters()}, {"params": model.classifier.parameters()},
              {"params": model.aux_classifier.parameters(), "lr": args.lr * 10}]
    optimizer = torch.optim.SGD(groups, lr=args.lr, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=len(train) * args.epochs, power=0.9)
    scaler = torch.amp.GradScaler("cuda")

    for epoch in range(args.epochs):
        model.train()
        for step, (image, target) in enumerate(train):
            image, target = image.to(device, non_blocking=True), target.to(device, non_blocking=True)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = criterion(model(image), target, args.aux_weight)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            if step % 5 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} lr {optimizer.param_groups[0]['lr']:.5f}")
        acc, miou = evaluate(model, val, args.classes, device)
        print(f"epoch {epoch}: pixel accuracy {acc:.4f}, mean IoU {miou:.4f}")
        with tempfile.TemporaryDirectory() as d:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
                       os.path.join(d, f"model_{epoch}.pth"))


if __name__ == "__main__":
    main()
