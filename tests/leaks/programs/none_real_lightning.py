"""Lightning's own loop with logging, an average of weights and a metric, which are all as they should be: https://github.com/Lightning-AI/pytorch-lightning/issues/7498"""

import logging
import os
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import vramlens

TRUTH = {"not a leak": "the loop keeps one batch's outputs", "needs": ["lightning"]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Module(lightning.LightningModule):
    def __init__(self, watch):
        super().__init__()
        self.watch, self.outputs = watch, []
        self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        loss = nn.functional.cross_entropy(logits, y)
        self.log_dict({"loss": loss, "accuracy": (logits.argmax(1) == y).float().mean()}, on_step=True, on_epoch=True)
        self.outputs.append(logits.detach())
        return loss

    def on_train_batch_end(self, *_):
        self.watch.step()

    def on_train_epoch_end(self):
        self.outputs.clear()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


def main():
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    module = Module(vramlens.LeakWatch())
    data = TensorDataset(torch.randn(256 * 6, 64), torch.randint(0, 8, (256 * 6,)))
    lightning.Trainer(
        max_epochs=4,
        accelerator="cpu" if DEVICE == "cpu" else "gpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(module, DataLoader(data, batch_size=256))
    return module.watch.report()


if __name__ == "__main__":
    report = main()
