"""A key-value cache grows for eight tokens, then the request is over."""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "each request's cache goes with the request"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Cache:
    def __init__(self):
        self.keys, self.values = [], []

    def append(self, key, value):
        self.keys.append(key)
        self.values.append(value)
        return torch.cat(self.keys), torch.cat(self.values)


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x, cache):
        query, key, value = self.qkv(x).chunk(3, -1)
        keys, values = cache.append(key, value)
        return (query @ keys.t() / 8).softmax(-1) @ values


@torch.no_grad()
def serve(requests, tokens, watch):
    layer, answers = Attention(256).to(DEVICE), []
    for _ in range(requests):
        cache, x = Cache(), torch.randn(128, 256, device=DEVICE)
        for _ in range(tokens):
            x = layer(x, cache)
            watch.step()
        answers.append(int(x.argmax()))
    return watch.report()


if __name__ == "__main__":
    report = serve(4, 8, vramlens.LeakWatch())
