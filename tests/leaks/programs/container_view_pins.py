"""One row of each batch is kept, and pins the whole batch."""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"leaks": [{"class": ["container"], "owner": ["examples"], "bytes_per_step": 4 * 400 * 320}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 320), nn.ReLU(), nn.Linear(320, 320))

    def forward(self, x):
        return self.net(x)  # ALLOCATES


class Gallery:
    """One example a batch for the report."""

    def __init__(self):
        self.examples = []
        self.labels = []

    def add(self, embeddings, label):
        self.examples.append(embeddings[0])  # KEEPS
        # FIX: self.examples.append(embeddings[0].clone())
        self.labels.append(label)


@torch.inference_mode()
def embed(encoder, gallery, watch):
    for number in range(16):
        gallery.add(encoder(torch.randn(400, 64, device=DEVICE)), f"class {number % 3}")
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = embed(Encoder().to(DEVICE), Gallery(), vramlens.LeakWatch())
