"""Each step's sequence is longer than any before: the peak rises, nothing stays: https://github.com/Lightning-AI/litgpt/issues/159"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "every step is larger than the one before, and gives all of it back"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(200, 64)
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
        self.head = nn.Linear(64, 200)

    def forward(self, ids):
        return self.head(self.layer(self.embed(ids)))


def train(model, lengths, watch):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    longest = 0
    for length in lengths:
        longest = max(longest, length)
        ids = torch.randint(0, 200, (4, length), device=DEVICE)
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        del loss, ids
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = train(LM().to(DEVICE), range(32, 32 + 16 * 16, 16), vramlens.LeakWatch())
