"""A trainer keeps what every training_step returns: https://github.com/Lightning-AI/pytorch-lightning/issues/4556"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"leaks": [{"class": ["container"], "owner": ["epoch_outputs", "outputs"], "bytes_per_step": 4 * 512 * 200}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class LitModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(64, 200)
        self.head = nn.Linear(200, 10)

    def training_step(self, batch, batch_idx):
        x, y = batch
        features = torch.relu(self.backbone(x))
        loss = nn.functional.cross_entropy(self.head(features), y)
        embedding = features.detach() * 1.0  # ALLOCATES
        return {"loss": loss, "embedding": embedding, "n": len(x)}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


class FitLoop:
    """Runs one long epoch."""

    def __init__(self, model, loader, watch):
        self.model, self.loader, self.watch = model, loader, watch
        self.epoch_outputs = []
        self.logged = []

    def advance(self, batch_idx, batch):
        output = self.model.training_step(batch, batch_idx)
        self.optimizer.zero_grad()
        output["loss"].backward()
        self.optimizer.step()
        self.logged.append(float(output["loss"]))
        output = {key: value for key, value in output.items() if key != "loss"}
        self.epoch_outputs.append(output)  # KEEPS
        # FIX: self.epoch_outputs.append(output["n"])

    def run(self):
        self.optimizer = self.model.configure_optimizers()
        for batch_idx, batch in enumerate(self.loader):
            self.advance(batch_idx, batch)
            self.watch.step()
        return self.watch.report()


def batches(n):
    for _ in range(n):
        yield torch.randn(512, 64, device=DEVICE), torch.randint(0, 10, (512,), device=DEVICE)


if __name__ == "__main__":
    report = FitLoop(LitModel().to(DEVICE), batches(18), vramlens.LeakWatch()).run()
