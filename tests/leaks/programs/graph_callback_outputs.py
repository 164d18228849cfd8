"""A callback of a trainer collects outputs with their graphs: https://github.com/HelmholtzAI-Consultants-Munich/Quicksetup-ai/issues/18"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"leaks": [{"class": ["graph"], "owner": ["outputs", "Confusion"], "bytes_per_step": 4 * 200 * (500 + 20)}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Callback:
    def on_batch_end(self, trainer, output, number):
        pass

    def on_epoch_end(self, trainer):
        pass


class Progress(Callback):
    def __init__(self):
        self.lines = []

    def on_batch_end(self, trainer, output, number):
        self.lines.append(f"{number}: {output['loss']:.3f}")


class Confusion(Callback):
    def __init__(self):
        self.outputs = []

    def on_batch_end(self, trainer, output, number):
        self.outputs.append(output)  # KEEPS
        # FIX: self.outputs.append(output["loss"])

    def on_epoch_end(self, trainer):
        self.outputs.clear()


class Trainer:
    def __init__(self, callbacks):
        self.callbacks = callbacks

    def validation_step(self, model, batch):
        x, y = batch
        preds = model(x)  # ALLOCATES
        loss = nn.functional.mse_loss(preds.detach(), y).item()
        return {"loss": loss, "preds": preds}

    def validate(self, model, batches, watch):
        for number, batch in enumerate(batches):
            output = self.validation_step(model, batch)
            for callback in self.callbacks:
                callback.on_batch_end(self, output, number)
            watch.step()
        report = watch.report()
        for callback in self.callbacks:
            callback.on_epoch_end(self)
        return report


if __name__ == "__main__":
    model = nn.Sequential(nn.Linear(60, 500), nn.Sigmoid(), nn.Linear(500, 20)).to(DEVICE)
    batches = [(torch.randn(200, 60, device=DEVICE), torch.randn(200, 20, device=DEVICE)) for _ in range(15)]
    report = Trainer([Progress(), Confusion()]).validate(model, batches, vramlens.LeakWatch())
