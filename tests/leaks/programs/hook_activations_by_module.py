"""Per-sample gradients store each layer's input for a backward that never comes: https://github.com/meta-pytorch/opacus/issues/176"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["hook", "container"],
            "why": "the hook's object is the user's own, too: its dictionary of lists is as near to the user as the hook",
            "owner": ["activations"],
            "bytes_per_step": 4 * 256 * 700,
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class GradSampleModule(nn.Module):
    """Wraps a model; capture_activations waits for a backward to pop what it stored."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.activations = {}
        self.enabled = True
        for layer in module.modules():
            if isinstance(layer, nn.Linear) and layer.in_features == 700:
                layer.register_forward_hook(self.capture_activations)
                layer.register_full_backward_hook(self.capture_backprops)

    def capture_activations(self, module, inputs, output):
        if self.enabled and module.training:
            self.activations.setdefault(id(module), []).append(inputs[0].detach())  # KEEPS
            # FIX: self.activations[id(module)] = [inputs[0].detach()]

    def capture_backprops(self, module, grad_input, grad_output):
        self.activations[id(module)].pop()

    def forward(self, x):
        return self.module(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(50, 700)
        self.second = nn.Linear(700, 9)

    def forward(self, x):
        hidden = self.first(x).clamp(min=0)  # ALLOCATES
        return self.second(hidden)


@torch.no_grad()
def validate(model, watch):
    correct = []
    for _ in range(16):
        x = torch.randn(256, 50, device=DEVICE)
        correct.append(int((model(x).argmax(1) == 0).sum()))
        watch.step()
    return watch.report()


if __name__ == "__main__":
    wrapped = GradSampleModule(Net().to(DEVICE))
    report = validate(wrapped, vramlens.LeakWatch())
