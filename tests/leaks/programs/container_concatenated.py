"""preds = cat((preds, logits)): one tensor, longer with each batch: https://github.com/huggingface/transformers/pull/7767"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["container", "other"],
            "why": "one tensor that is made anew, longer, at every step: nothing outlives its step but the last copy",
            "owner": ["preds"],
            "bytes_per_step": 4 * 128 * 300,
        }
    ],
    "stacks": False,
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


def predict(model, batches, watch):
    preds = None
    labels = []
    for batch in batches:
        with torch.no_grad():
            logits = model(batch)
        preds = logits if preds is None else torch.cat((preds, logits), dim=0)  # KEEPS ALLOCATES
        # FIX: preds = logits
        labels.append(int(logits[0].argmax()))
        watch.step()
    report = watch.report()
    return report, preds.mean().item(), labels


if __name__ == "__main__":
    watch = vramlens.LeakWatch()
    model = nn.Sequential(nn.Linear(40, 300), nn.Softmax(-1)).to(DEVICE)
    report, mean, labels = predict(model, [torch.randn(128, 40, device=DEVICE) for _ in range(20)], watch)
