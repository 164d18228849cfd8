"""Lightning: bf16, validation, early stopping, a checkpoint of the best epoch, a scheduler, clipping."""

import tempfile

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset


class AutoEncoder(L.LightningModule):
    def __init__(self, width=256, rate=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(nn.Linear(784, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, 32))
        self.decoder = nn.Sequential(nn.Linear(32, width), nn.GELU(), nn.Linear(width, 784))

    def training_step(self, batch, index):
        x = batch[0].flatten(1)
        loss = F.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        x = batch[0].flatten(1)
        self.log("val_loss", F.l1_loss(self.decoder(self.encoder(x)), x))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.rate)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


L.seed_everything(1)
images = TensorDataset(torch.rand(256, 1, 28, 28))
with tempfile.TemporaryDirectory() as folder:
    trainer = L.Trainer(
        accelerator="gpu", devices=1, precision="bf16-mixed", max_epochs=2, default_root_dir=folder, logger=False,
        gradient_clip_val=1.0, accumulate_grad_batches=2, log_every_n_steps=1,
        callbacks=[EarlyStopping("val_loss"), ModelCheckpoint(folder, monitor="val_loss")],
    )
    trainer.fit(AutoEncoder(), DataLoader(images, 64, shuffle=True), DataLoader(images, 128))
    print(trainer.callback_metrics)
