"""evaluate() gathers all logits on the device: https://github.com/huggingface/transformers/issues/7232"""

import os
from dataclasses import dataclass, field

import torch
from torch import nn

import vramlens

TRUTH = {"leaks": [{"class": ["container"], "owner": ["tensors", "all_preds"], "bytes_per_step": 4 * 16 * 32 * 500}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


@dataclass
class EvalLoopContainer:
    """Tensors of the evaluation so far."""

    tensors: list = field(default_factory=list)

    def add(self, tensor):
        self.tensors.append(tensor)  # KEEPS
        # FIX: self.tensors.append(tensor.argmax(-1).sum().item())


class Trainer:
    def __init__(self, model):
        self.model = model
        self.log_history = []

    def prediction_step(self, inputs):
        with torch.no_grad():
            hidden = self.model["embed"](inputs["input_ids"])
            logits = self.model["lm_head"](torch.relu(hidden))  # ALLOCATES
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), inputs["labels"].flatten())
        return loss, logits

    def evaluation_loop(self, dataloader, watch):
        all_losses, all_preds = EvalLoopContainer(), EvalLoopContainer()
        losses = []
        for step, inputs in enumerate(dataloader):
            loss, logits = self.prediction_step(inputs)
            losses.append(loss.item())
            all_preds.add(logits)
            self.log_history.append({"step": step, "eval_loss": losses[-1]})
            watch.step()
        report = watch.report()
        return report, sum(losses), len(all_losses.tensors)


def main():
    model = nn.ModuleDict({"embed": nn.Embedding(500, 64), "lm_head": nn.Linear(64, 500)}).to(DEVICE)
    ids = torch.randint(0, 500, (16, 32), device=DEVICE)
    trainer = Trainer(model)
    report, _, _ = trainer.evaluation_loop([{"input_ids": ids, "labels": ids}] * 16, vramlens.LeakWatch())
    return report


if __name__ == "__main__":
    report = main()
