"""A metric averages the loss itself, in a validation with gradients on: https://github.com/horovod/horovod/pull/641"""

import os

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["graph"],
            "owner": ["sum", "total"],
            "bytes_per_step": 4 * 512 * (512 + 10) + 4,  # the relu, the log_softmax, the sum of weights
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Metric:
    """Averages what it is told."""

    def __init__(self, name):
        self.name = name
        self.sum = torch.tensor(0.0, device=DEVICE)
        self.n = 0

    def update(self, value):
        self.n += 1
        self.sum += value  # KEEPS
        # FIX: self.sum += value.detach()

    @property
    def avg(self):
        return self.sum / self.n


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(784, 512)
        self.fc2 = nn.Linear(512, 10)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        return self.fc2(x)


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean()


def validate(model, batches, watch):
    val_loss = Metric("val_loss")
    val_accuracy = Metric("val_accuracy")
    for data, target in batches:
        output = model(data)  # ALLOCATES
        val_loss.update(F.cross_entropy(output, target))
        val_accuracy.update(accuracy(output, target))
        watch.step()
    return {"loss": float(val_loss.avg), "accuracy": float(val_accuracy.avg)}, watch.report()


if __name__ == "__main__":
    watch = vramlens.LeakWatch()
    model = Net().to(DEVICE)
    batches = [(torch.randn(512, 784, device=DEVICE), torch.randint(0, 10, (512,), device=DEVICE)) for _ in range(16)]
    scores, report = validate(model, batches, watch)
