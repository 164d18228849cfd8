"""Land-cover segmentation with DeepLabV3-ResNet50, auxiliary head, bf16 autocast, poly schedule."""
import argparse
import os
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision.models.segmentation import deeplabv3_resnet50


class LandCover(Dataset):
    def __init__(self, count, height, width, classes, seed):
        self.count, self.hw, self.classes, self.seed = count, (height, width), classes, seed
        rng = np.random.default_rng(99)
        self.palette = torch.from_numpy(rng.uniform(-1.5, 1.5, (classes, 3)).astype(np.float32))

    def __len__(self):
        return self.count

    def __getitem__(self, idx):
        g = torch.Generator().manual_seed(self.seed + idx)
        coarse = torch.rand(1, self.classes, 7, 9, generator=g)
        field = F.interpolate(coarse, size=(52, 52), mode="bilinear", align_corners=False)
        lab = F.interpolate(field.argmax(1, keepdim=True).float(), size=self.hw, mode="nearest")[0, 0].long()
        img = self.palette[lab].permute(2, 0, 1) + 0.2 * torch.randn(3, 1, self.hw[1], generator=g)
        lab[:2], lab[-2:] = 255, 255   # border is unlabelled
        return img.contiguous(), lab


class ConfusionMatrix:
    def __init__(self, n, device):
        self.n = n
        self.mat = torch.zeros(n, n, dtype=torch.int64, device=device)

    def update(self, target, pred):
        k = (target >= 0) & (target < self.n)
        self.mat += torch.bincount(self.n * target[k] + pred[k], minlength=self.n ** 2).view(self.n, self.n)

    def miou(self):
        m = self.mat.float()
        inter = m.diag()
        return (inter / (m.sum(0) + m.sum(1) - inter).clamp(min=1)).mean().item()


def criterion(out, target, aux_weight=0.4):
    loss = F.cross_entropy(out["out"], target, ignore_index=255)
    if "aux" in out:
        loss = loss + aux_weight * F.cross_entropy(out["aux"], target, ignore_index=255)
    return loss


def evaluate(model, loader, classes):
    model.eval()
    cm = ConfusionMatrix(classes, "cuda")
    with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16):
        for img, lab in loader:
            pred = model(img.to("cuda"))["out"].argmax(1)
            cm.update(lab.to("cuda").flatten(), pred.flatten())
    return cm.miou()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--classes", type=int, default=11)
    ap.add_argument("--crop", type=int, default=393)
    ap.add_argument("--batch", type=int, default=10)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--train-size", type=int, default=250)
    ap.add_argument("--lr", type=float, default=0.02)
    args = ap.parse_args()
    torch.manual_seed(4)

    model = deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=args.classes, aux_loss=True).to("cuda")
    train = DataLoader(LandCover(args.train_size, args.crop, args.crop, args.classes, 0), args.batch, shuffle=True,
                       drop_last=True, num_workers=2, pin_memory=True)
    valid = DataLoader(LandCover(18, 512, 640, args.classes, 50000), 6)
    params = [
        {"params": model.backbone.parameters()},
        {"params": model.classifier.parameters(), "lr": args.lr * 2},
        {"params": model.aux_classifier.parameters(), "lr": args.lr * 2},
    ]
    optimizer = torch.optim.SGD(params, lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=len(train) * args.epochs, power=0.9)

    with tempfile.TemporaryDirectory() as ckpt:
        for epoch in range(args.epochs):
            model.train()
            for it, (img, lab) in enumerate(train):
                img, lab = img.to("cuda", non_blocking=True), lab.to("cuda", non_blocking=True)
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    out = model(img)
                    loss = criterion(out, lab)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
                optimizer.step()
                scheduler.step()
                if it % 8 == 0:
                    print(f"[{epoch}:{it}] loss {loss.item():.3f} lr {scheduler.get_last_lr()[0]:.4f}", flush=True)
            print(f"epoch {epoch} mIoU {evaluate(model, valid, args.classes):.4f}", flush=True)
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                        "scheduler": scheduler.state_dict()}, os.path.join(ckpt, f"epoch{epoch}.pth"))


if __name__ == "__main__":
    main()
