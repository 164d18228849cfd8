"""Token streams whose clients hung up: each generator is suspended with its cache."""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["container", "closure", "other"],
            "why": "no class is meant for generators: a list of them, each holding its locals",
            "owner": ["streams", "cache"],
            "bytes_per_step": 4 * 2 * 128 * 512,
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.keys, self.values = nn.Linear(512, 512), nn.Linear(512, 512)

    @torch.no_grad()
    def prefill(self, prompt):
        return self.keys(prompt), self.values(prompt)  # ALLOCATES

    def stream(self, prompt, tokens):
        cache = self.prefill(prompt)
        for position in range(tokens):
            yield float(cache[0][position].sum() + cache[1][position].sum())


class Service:
    def __init__(self):
        self.decoder = Decoder().to(DEVICE)
        self.streams = []
        self.first_tokens = []

    def open(self, prompt):
        stream = self.decoder.stream(prompt, 64)
        self.first_tokens.append(next(stream))
        self.streams.append(stream)  # KEEPS
        # FIX: self.streams[:] = [stream]


def main(watch):
    service = Service()
    prompt = torch.randn(128, 512, device=DEVICE)
    for _ in range(15):
        service.open(prompt)
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main(vramlens.LeakWatch())
