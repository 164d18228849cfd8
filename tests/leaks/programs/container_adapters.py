"""Each adapter that is loaded stays on the device when the next one comes: https://github.com/huggingface/peft/issues/1639"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["container"],
            "owner": ["lora_A", "lora_B", "adapters", "_modules"],
            "bytes_per_step": 4 * 2 * 64 * 700,
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class LoraLayer(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.lora_A, self.lora_B = nn.ModuleDict(), nn.ModuleDict()
        self.active = None

    def load_adapter(self, name, rank):
        self.lora_A[name] = nn.Linear(700, rank, bias=False, device=DEVICE)  # KEEPS ALLOCATES
        # FIX: self.lora_A["only"] = nn.Linear(700, rank, bias=False, device=DEVICE)
        self.lora_B[name] = nn.Linear(rank, 700, bias=False, device=DEVICE)  # KEEPS ALLOCATES
        # FIX: self.lora_B["only"] = nn.Linear(rank, 700, bias=False, device=DEVICE)
        self.active = list(self.lora_A)[-1]

    def forward(self, x):
        return self.base(x) + self.lora_B[self.active](self.lora_A[self.active](x))


def serve(layer, names, watch):
    outputs = {}
    with torch.inference_mode():
        for name in names:
            layer.load_adapter(name, 64)
            outputs[name] = layer(torch.ones(4, 700, device=DEVICE)).mean().item()
            watch.step()
    return watch.report()


if __name__ == "__main__":
    layer = LoraLayer(nn.Linear(700, 700).to(DEVICE)).requires_grad_(False)
    report = serve(layer, [f"customer_{number}" for number in range(15)], vramlens.LeakWatch())
