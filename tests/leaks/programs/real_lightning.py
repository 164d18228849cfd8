"""A LightningModule collects its validation outputs and forgets to clear them: https://github.com/Lightning-AI/pytorch-lightning/issues/4556"""

import logging
import os
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import vramlens

TRUTH = {
    "leaks": [{"class": ["container"], "owner": ["training_outputs"], "bytes_per_step": 4 * 256 * 300}],
    "needs": ["lightning"],
    "stacks": False,
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class LitClassifier(lightning.LightningModule):
    def __init__(self, watch):
        super().__init__()
        self.watch = watch
        self.features, self.head = nn.Linear(40, 300), nn.Linear(300, 5)
        self.training_outputs = []
        self.losses = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        hidden = torch.tanh(self.features(x))
        loss = nn.functional.cross_entropy(self.head(hidden), y)
        embedding = hidden.detach() * 2  # ALLOCATES
        self.training_outputs.append(embedding)  # KEEPS
        # FIX: self.training_outputs[:] = [embedding]
        self.log("loss", loss, prog_bar=False)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.losses.append(float(outputs["loss"]))
        self.watch.step()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main():
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    module = LitClassifier(vramlens.LeakWatch())
    data = TensorDataset(torch.randn(256 * 16, 40), torch.randint(0, 5, (256 * 16,)))
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu" if DEVICE == "cpu" else "gpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(data, batch_size=256))
    return module.watch.report()


if __name__ == "__main__":
    report = main()
