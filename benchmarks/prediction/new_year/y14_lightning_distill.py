"""Knowledge distillation with PyTorch Lightning: ConvNeXt teacher, EfficientNet-B0 student, 16-mixed precision."""
import argparse
import tempfile

import pytorch_lightning as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, Dataset
from torchvision.models import convnext_small, convnext_tiny, efficientnet_b0


class Textures(Dataset):
    """Crops of a few large stored textures; the class is the texture and its tint."""

    def __init__(self, n, size, classes, seed):
        g = torch.Generator().manual_seed(seed)
        base = torch.Generator().manual_seed(0)
        self.pool = torch.randint(0, 256, (8, 3, size + 64, size + 64), dtype=torch.uint8, generator=base)
        self.labels = torch.randint(classes, (n,), generator=g)
        self.corner = torch.randint(0, 64, (n, 2), generator=g)
        self.size = size

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        label = int(self.labels[i])
        a, b = self.corner[i].tolist()
        crop = self.pool[label % 8, :, a:a + self.size, b:b + self.size].float() / 255
        return (crop + 0.02 * (label // 8) - 0.5) / 0.25, label


class TextureData(pl.LightningDataModule):
    def __init__(self, args):
        super().__init__()
        self.args = args

    def train_dataloader(self):
        return DataLoader(Textures(self.args.train_size, self.args.size, self.args.classes, 1), self.args.batch,
                          shuffle=True, num_workers=2, drop_last=True, persistent_workers=False)

    def val_dataloader(self):
        return DataLoader(Textures(self.args.train_size // 8, self.args.size + 16, self.args.classes, 2),
                          self.args.batch * 3 // 2)


class Distiller(pl.LightningModule):
    def __init__(self, classes, lr, temperature, alpha, max_steps, tiny):
        super().__init__()
        self.save_hyperparameters()
        build = convnext_tiny if tiny else convnext_small
        self.teacher = build(weights=None, num_classes=classes).requires_grad_(False)
        self.student = efficientnet_b0(weights=None, num_classes=classes)

    def forward(self, x):
        return self.student(x)

    def training_step(self, batch, index):
        x, y = batch
        self.teacher.eval()
        with torch.no_grad():
            soft = self.teacher(x)
        out = self.student(x)
        t, alpha = self.hparams.temperature, self.hparams.alpha
        kd = F.kl_div(F.log_softmax(out.float() / t, -1), F.log_softmax(soft.float() / t, -1), log_target=True,
                      reduction="batchmean") * t * t
        hard = F.cross_entropy(out.float(), y, label_smoothing=0.1)
        loss = alpha * kd + (1 - alpha) * hard
        if index % 8 == 0:
            print(f"step {self.global_step} loss {loss.item():.4f} kd {kd.item():.4f} ce {hard.item():.4f}")
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        out = self.student(x)
        self.log("val_acc", (out.argmax(-1) == y).float().mean(), on_epoch=True, batch_size=len(y))
        self.log("val_loss", F.cross_entropy(out.float(), y), on_epoch=True, batch_size=len(y))

    def on_validation_epoch_end(self):
        print({k: round(float(v), 4) for k, v in self.trainer.callback_metrics.items()})

    def configure_optimizers(self):
        decay = [p for p in self.student.parameters() if p.ndim > 1]
        plain = [p for p in self.student.parameters() if p.ndim <= 1]
        opt = torch.optim.RMSprop([{"params": decay, "weight_decay": 1e-5}, {"params": plain, "weight_decay": 0.0}],
                                  lr=self.hparams.lr, alpha=0.9, momentum=0.9, eps=1e-3)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, self.hparams.max_steps)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint):
        checkpoint["state_dict"] = {k: v for k, v in checkpoint["state_dict"].items() if not k.startswith("teacher.")}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--size", type=int, default=176)
    p.add_argument("--classes", type=int, default=40)
    p.add_argument("--batch", type=int, default=110)
    p.add_argument("--train-size", type=int, default=2900)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--accumulate", type=int, default=2)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--tiny-teacher", action="store_true")
    args = p.parse_args()
    pl.seed_everything(100, verbose=False)

    steps = args.epochs * (args.train_size // args.batch) // args.accumulate
    model = Distiller(args.classes, args.lr, 4.0, 0.7, steps, args.tiny_teacher)
    with tempfile.TemporaryDirectory() as folder:
        keep = ModelCheckpoint(dirpath=folder, save_top_k=1, monitor="val_loss", save_weights_only=True)
        trainer = pl.Trainer(accelerator="gpu", devices=1, precision="16-mixed", max_epochs=args.epochs,
                             accumulate_grad_batches=args.accumulate, gradient_clip_val=2.0, logger=False,
                             callbacks=[keep], enable_progress_bar=False, enable_model_summary=False,
                             num_sanity_val_steps=1, default_root_dir=folder)
        trainer.fit(model, TextureData(args))
        print("best", float(keep.best_model_score))


if __name__ == "__main__":
    main()
