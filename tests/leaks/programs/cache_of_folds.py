"""@lru_cache on a function of the model keeps every fold's model: https://github.com/meta-pytorch/torchtune/issues/904"""

import os
from functools import lru_cache

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["cache"],
            "owner": ["adapter_names", "cache"],
            "bytes_per_step": 4 * (2 * (128 * 8 + 8 * 512) + 128 * 512 + 512),
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class LoRALinear(nn.Module):
    def __init__(self, inner, outer, rank=8):
        super().__init__()
        self.base = nn.Linear(inner, outer)
        self.lora_a = nn.Linear(inner, rank, bias=False)
        self.lora_b = nn.Linear(rank, outer, bias=False)
        self.base.requires_grad_(False)

    def forward(self, x):
        return self.base(x) + self.lora_b(self.lora_a(x))


@lru_cache(maxsize=None)  # noqa: UP033  # KEEPS
# FIX: @lru_cache(maxsize=1)
def adapter_names(model):  # KEEPS
    return frozenset(name for name, _ in model.named_parameters() if "lora" in name)


def train_fold(fold, data):
    model = LoRALinear(128, 512).to(DEVICE)  # ALLOCATES
    names = adapter_names(model)
    trained = [parameter for name, parameter in model.named_parameters() if name in names]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(data).pow(2).mean()
        loss.backward()
        optimizer.step()
    return {"fold": fold, "loss": loss.item()}


def main():
    data = torch.randn(64, 128, device=DEVICE)
    watch = vramlens.LeakWatch()
    results = []
    for fold in range(15):
        results.append(train_fold(fold, data))  # ALLOCATES
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
