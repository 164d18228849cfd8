"""Layers are unfrozen one after the other, and bring gradients and moments with them: https://github.com/pytorch/pytorch/issues/9439"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "five layers, the last unfrozen at step 10"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


def unfreeze(model, optimizer, number):
    layer = model[number]
    layer.requires_grad_(True)
    optimizer.add_param_group({"params": list(layer.parameters())})


def main():
    model = nn.Sequential(*[nn.Linear(160, 160) for _ in range(6)]).to(DEVICE).requires_grad_(False)
    model[5].requires_grad_(True)
    optimizer = torch.optim.Adam(model[5].parameters(), lr=1e-4)
    watch = vramlens.LeakWatch()
    history = []
    for step in range(28):
        if step % 2 == 0 and 4 - step // 2 >= 0:
            unfreeze(model, optimizer, 4 - step // 2)
        x = torch.randn(64, 160, device=DEVICE)
        optimizer.zero_grad(set_to_none=False)
        loss = (model(x) - x).abs().mean()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
