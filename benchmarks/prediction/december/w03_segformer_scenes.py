"""Semantic segmentation with SegFormer (MiT-B2 like) on synthetic street scenes.

Poly learning rate, ten times the rate on the decode head, class weights, sliding-window evaluation on larger frames.
"""
import argparse
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import SegformerConfig, SegformerForSemanticSegmentation


class Scenes(Dataset):
    """Frames made of coloured rectangles; the class is the rectangle's kind, 255 is 'void'."""

    def __init__(self, length, height, width, classes, seed):
        self.length, self.h, self.w, self.classes, self.seed = length, height, width, classes, seed
        g = torch.Generator().manual_seed(99)
        self.palette = torch.randint(0, 256, (classes, 3), generator=g)

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100003 + i)
        label = torch.zeros(self.h, self.w, dtype=torch.long)
        for _ in range(14):
            c = int(torch.randint(0, self.classes, (1,), generator=g))
            y, x = int(torch.randint(0, self.h - 8, (1,), generator=g)), int(torch.randint(0, self.w - 8, (1,), generator=g))
            hh, ww = int(torch.randint(8, self.h // 2, (1,), generator=g)), int(torch.randint(8, self.w // 2, (1,), generator=g))
            label[y: y + hh, x: x + ww] = c
        image = self.palette[label].permute(2, 0, 1).to(torch.uint8)
        void = label.clone()
        void[:4] = 255
        return image, void


def normalise(image):
    return image.float().div_(127.5).sub_(1.0)


def augment(image, label):
    """Flip and brightness on the device, one draw for the whole batch."""
    if torch.rand(()) < 0.5:
        image, label = image.flip(-1), label.flip(-1)
    return image * (0.8 + 0.4 * torch.rand(image.shape[0], 1, 1, 1, device=image.device)), label


def sliding_logits(model, image, window, stride, classes):
    b, _, h, w = image.shape
    total = torch.zeros(b, classes, h, w, device=image.device)
    seen = torch.zeros(1, 1, h, w, device=image.device)
    wh, ww = window
    tops = list(range(0, h - wh, stride[0])) + [h - wh]
    lefts = list(range(0, w - ww, stride[1])) + [w - ww]
    for y in tops:
        for x in lefts:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                out = model(pixel_values=image[:, :, y: y + wh, x: x + ww]).logits
            total[:, :, y: y + wh, x: x + ww] += F.interpolate(out.float(), size=(wh, ww), mode="bilinear", align_corners=False)
            seen[:, :, y: y + wh, x: x + ww] += 1
    return total / seen


@torch.no_grad()
def mean_iou(model, loader, window, classes, device):
    model.eval()
    conf = torch.zeros(classes, classes, device=device)
    for image, label in loader:
        image, label = normalise(image.to(device)), label.to(device)
        pred = sliding_logits(model, image, window, (window[0] * 2 // 3, window[1] * 2 // 3), classes).argmax(1)
        keep = label != 255
        conf += torch.bincount(label[keep] * classes + pred[keep], minlength=classes ** 2).view(classes, classes).float()
    inter = conf.diag()
    union = conf.sum(0) + conf.sum(1) - inter
    model.train()
    return (inter / union.clamp(min=1))[union > 0].mean().item()


def build(args):
    cfg = SegformerConfig(depths=args.depths, hidden_sizes=args.widths, decoder_hidden_size=args.decoder,
                          num_attention_heads=[1, 2, 5, 8], sr_ratios=[8, 4, 2, 1], drop_path_rate=0.1,
                          num_labels=args.classes, semantic_loss_ignore_index=255)
    return SegformerForSemanticSegmentation(cfg)


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--depths", type=int, nargs=4, default=[3, 4, 6, 3])
    p.add_argument("--widths", type=int, nargs=4, default=[64, 128, 320, 512])
    p.add_argument("--decoder", type=int, default=512)
    p.add_argument("--classes", type=int, default=23)
    p.add_argument("--height", type=int, default=384)
    p.add_argument("--width", type=int, default=544)
    p.add_argument("--batch", type=int, default=9)
    p.add_argument("--steps", type=int, default=36)
    p.add_argument("--lr", type=float, default=1e-4)
    return p.parse_args()


def main():
    args = parse()
    torch.manual_seed(42)
    torch.backends.cudnn.benchmark = False
    device = torch.device("cuda")
    model = build(args).to(device).train()

    head = [p for n, p in model.named_parameters() if n.startswith("decode_head")]
    body = [p for n, p in model.named_parameters() if not n.startswith("decode_head")]
    opt = torch.optim.AdamW([{"params": body, "lr": args.lr}, {"params": head, "lr": 10 * args.lr}], weight_decay=0.01)
    sched = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=args.steps, power=0.9)
    weights = torch.linspace(1.5, 0.5, args.classes, device=device)

    train = DataLoader(Scenes(args.batch * args.steps, args.height, args.width, args.classes, 1), batch_size=args.batch,
                       shuffle=True, num_workers=2, drop_last=True, pin_memory=True)
    valid = DataLoader(Scenes(12, args.height * 3 // 2, args.width * 3 // 2, args.classes, 2), batch_size=4)

    for step, (image, label) in enumerate(train, 1):
        image, label = augment(normalise(image.to(device, non_blocking=True)), label.to(device, non_blocking=True))
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(pixel_values=image).logits
        logits = F.interpolate(logits.float(), size=label.shape[-2:], mode="bilinear", align_corners=False)
        loss = F.cross_entropy(logits, label, weight=weights, ignore_index=255)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 6 == 0:
            print(f"step {step:3d} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.2e}", flush=True)
        if step == args.steps // 2:
            print(f"step {step:3d} mIoU {mean_iou(model, valid, (args.height, args.width), args.classes, device):.4f}", flush=True)

    print(f"final mIoU {mean_iou(model, valid, (args.height, args.width), args.classes, device):.4f}")
    with tempfile.TemporaryDirectory() as tmp:
        path = Path(tmp) / "segformer.pt"
        torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, path)
        print(f"checkpoint {path.stat().st_size / 2 ** 20:.0f} MiB")


if __name__ == "__main__":
    main()
