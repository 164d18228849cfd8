"""Validation without no_grad keeps every loss for a plot: https://github.com/microsoft/SpareNet/issues/12"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["graph"],
            "owner": ["losses"],
            # two relus and the output; PyTorch computes the loss in a buffer of the output's size and then calls it a scalar
            "bytes_per_step": 4 * 256 * (1024 + 512 + 128 + 128),
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class PointNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU())
        self.decode = nn.Linear(512, 128)

    def forward(self, cloud: torch.Tensor) -> torch.Tensor:
        return self.decode(self.encode(cloud))


class Validator:
    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.losses: list[torch.Tensor] = []
        self.seen = 0
        self.names: list[str] = []

    def run(self, clouds: torch.Tensor, watch: vramlens.LeakWatch) -> None:
        for number, cloud in enumerate(clouds):
            loss = nn.functional.mse_loss(self.model(cloud), cloud)  # ALLOCATES
            self.losses.append(loss)  # KEEPS
            # FIX: self.losses.append(loss.item())
            self.names.append(f"cloud {number}")
            self.seen += len(cloud)
            watch.step()


def main() -> vramlens.LeakWatch:
    watch = vramlens.LeakWatch()
    validator = Validator(PointNet().to(DEVICE))
    validator.run(torch.randn(16, 256, 128, device=DEVICE), watch)
    return watch.report()


if __name__ == "__main__":
    report = main()
