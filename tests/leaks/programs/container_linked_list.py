"""Every node of a beam knows its parent, and so keeps all the states since the start."""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["container", "other"],
            "why": "a chain of objects, no container of Python's",
            "owner": ["parent", "node", "best", "Hypothesis"],
            "bytes_per_step": 4 * 16 * 2000,
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Hypothesis:
    def __init__(self, token, score, state, parent=None):
        self.token, self.score, self.state = token, score, state
        self.parent = parent  # KEEPS
        # FIX: self.parent = None


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(2000, 50)
        self.expand = nn.Linear(50, 2000)

    def forward(self, state):
        logits = self.cell(state)
        return logits.log_softmax(-1), self.expand(torch.tanh(logits))  # ALLOCATES


@torch.no_grad()
def decode(decoder, steps, watch):
    best = Hypothesis(1, 0.0, torch.zeros(16, 2000, device=DEVICE))
    texts = []
    for _ in range(steps):
        scores, state = decoder(best.state)
        score, token = scores.flatten().max(0)
        best = Hypothesis(int(token), best.score + float(score), state, best)
        texts.append(str(best.token))
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = decode(Decoder().to(DEVICE), 20, vramlens.LeakWatch())
