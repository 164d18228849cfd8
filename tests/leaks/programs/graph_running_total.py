"""The evaluation sums losses with their graphs: https://github.com/ray-project/ray/pull/40940"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["graph"],
            "owner": ["loss_sum"],
            "bytes_per_step": 4 * 64 * 16 * (128 + 256 + 100) + 8 * 64 * (17 + 16) + 4,
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")
VOCABULARY = 100


class TinyLM(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.up = nn.Linear(width, 256)
        self.head = nn.Linear(256, VOCABULARY)

    def forward(self, ids, labels):
        hidden = torch.tanh(self.up(self.embed(ids)))
        logits = self.head(hidden)
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def batches(n):
    for _ in range(n):
        ids = torch.randint(0, VOCABULARY, (64, 17), device=DEVICE)
        yield ids[:, :-1], ids[:, 1:]


def evaluate(model, watch):
    model.eval()
    loss_sum = 0
    tokens = 0
    for ids, labels in batches(14):
        loss = model(ids, labels)  # ALLOCATES
        loss_sum += loss  # KEEPS
        # FIX: loss_sum += loss.item()
        tokens += labels.numel()
        watch.step()
    report = watch.report()
    return float(loss_sum) / 14, tokens, report


if __name__ == "__main__":
    watch = vramlens.LeakWatch()
    loss, tokens, report = evaluate(TinyLM().to(DEVICE), watch)
