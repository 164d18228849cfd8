"""Fine-tune SegFormer for land-cover segmentation with transformers.Trainer in bf16."""
import argparse
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (SegformerConfig, SegformerForSemanticSegmentation, Trainer, TrainerCallback,
                          TrainingArguments, set_seed)

CLASSES = ["background", "water", "forest", "field", "road", "building", "barren", "wetland", "rail", "park", "cloud"]


class Tiles(Dataset):
    """Voronoi-like label maps with a colour per class and sensor noise."""

    def __init__(self, n, size, num_labels, seed, sites=14):
        self.n, self.size, self.num_labels, self.seed, self.sites = n, size, num_labels, seed, sites
        self.palette = torch.randn(num_labels, 3, generator=torch.Generator().manual_seed(7))
        axis = torch.linspace(0, 1, size // 4)
        self.grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), dim=-1).view(-1, 2)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100003 + i)
        sites = torch.rand(self.sites, 2, generator=g)
        kinds = torch.randint(0, self.num_labels, (self.sites,), generator=g)
        label = kinds[torch.cdist(self.grid, sites).argmin(1)].view(self.size // 4, self.size // 4)
        label = label.repeat_interleave(4, 0).repeat_interleave(4, 1)
        image = self.palette[label].permute(2, 0, 1) + 0.4 * torch.randn(3, self.size, self.size, generator=g)
        label = label.clone()
        label[:6] = 255  # sensor border carries no annotation
        return {"pixel_values": image, "labels": label}


class History(TrainerCallback):
    def __init__(self):
        self.losses = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            self.losses.append(float(logs["loss"]))


def preprocess_logits(logits, labels):
    """Upsample and take the arg-max on the GPU, so that the evaluation loop keeps only class maps."""
    up = torch.nn.functional.interpolate(logits.float(), size=labels.shape[-2:], mode="bilinear", align_corners=False)
    return up.argmax(dim=1).to(torch.uint8)


def build_metrics(num_labels):
    def compute(pred):
        classes, labels = pred.predictions, pred.label_ids
        keep = labels != 255
        index = labels[keep].astype(np.int64) * num_labels + classes[keep].astype(np.int64)
        matrix = np.bincount(index, minlength=num_labels ** 2).reshape(num_labels, num_labels)
        inter = np.diag(matrix).astype(np.float64)
        union = matrix.sum(0) + matrix.sum(1) - inter
        iou = inter[union > 0] / union[union > 0]
        return {"miou": float(iou.mean()), "pixel_accuracy": float(inter.sum() / matrix.sum())}
    return compute


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--size", type=int, default=416)
    ap.add_argument("--train-images", type=int, default=160)
    ap.add_argument("--val-images", type=int, default=36)
    ap.add_argument("--batch", type=int, default=10)
    ap.add_argument("--eval-batch", type=int, default=18)
    ap.add_argument("--epochs", type=float, default=2)
    ap.add_argument("--lr", type=float, default=1.2e-4)
    ap.add_argument("--depths", type=int, nargs=4, default=[3, 4, 6, 3])
    ap.add_argument("--hidden", type=int, nargs=4, default=[64, 128, 320, 512])
    ap.add_argument("--decoder", type=int, default=512)
    args = ap.parse_args()
    set_seed(77)

    config = SegformerConfig(depths=args.depths, hidden_sizes=args.hidden, decoder_hidden_size=args.decoder,
                             num_labels=len(CLASSES), id2label=dict(enumerate(CLASSES)),
                             label2id={c: i for i, c in enumerate(CLASSES)}, semantic_loss_ignore_index=255,
                             drop_path_rate=0.1)
    model = SegformerForSemanticSegmentation(config)
    print(f"{model.num_parameters() / 1e6:.1f} M parameters")

    train = Tiles(args.train_images, args.size, len(CLASSES), seed=1)
    val = Tiles(args.val_images, args.size, len(CLASSES), seed=2)
    history = History()
    with tempfile.TemporaryDirectory() as out:
        targs = TrainingArguments(
            output_dir=out, num_train_epochs=args.epochs, per_device_train_batch_size=args.batch,
            per_device_eval_batch_size=args.eval_batch, learning_rate=args.lr, weight_decay=0.01,
            lr_scheduler_type="polynomial", warmup_steps=4, bf16=True, max_grad_norm=1.0,
            eval_strategy="epoch", save_strategy="epoch", save_total_limit=1, logging_steps=4,
            dataloader_num_workers=2, dataloader_drop_last=True, remove_unused_columns=False,
            report_to="none", disable_tqdm=True, seed=77)
        trainer = Trainer(model=model, args=targs, train_dataset=train, eval_dataset=val,
                          compute_metrics=build_metrics(len(CLASSES)),
                          preprocess_logits_for_metrics=preprocess_logits, callbacks=[history])
        trainer.train()
        metrics = trainer.evaluate()
    print("losses", [round(v, 3) for v in history.losses])
    print({k: round(v, 4) for k, v in metrics.items() if isinstance(v, float)})
    print(f"max allocated {torch.cuda.max_memory_allocated('cuda') / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
