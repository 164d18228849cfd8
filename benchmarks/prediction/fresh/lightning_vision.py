"""A Lightning module: a ResNet, mixed precision, validation, metrics, checkpoints."""

import tempfile

import lightning as L
import torch
import torch.nn.functional as F
import torchmetrics
import torchvision
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self, classes=10, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.model = torchvision.models.resnet18(num_classes=classes)
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=classes)

    def training_step(self, batch, index):
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        logits = self.model(x)
        self.accuracy(logits, y)
        self.log("val_loss", F.cross_entropy(logits, y), prog_bar=True)
        self.log("val_acc", self.accuracy, prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        return [optimizer], [schedule]


def loader(count, batch):
    images = torch.randn(count, 3, 128, 128)
    data = TensorDataset(images, torch.randint(0, 10, (count,)))
    return DataLoader(data, batch_size=batch, shuffle=True, num_workers=2)


if __name__ == "__main__":
    L.seed_everything(0)
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            max_epochs=2, accelerator="gpu", devices=1, precision="bf16-mixed",
            default_root_dir=folder, gradient_clip_val=1.0, log_every_n_steps=1,
        )
        trainer.fit(Classifier(), loader(192, 64), loader(64, 64))
