"""New prompt embeddings go to the optimizer and never leave it."""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["container"],
            "owner": ["param_groups", "optimizer", "SGD.state"],
            "bytes_per_step": 4 * 3 * 200 * 128,  # the prompt, its gradient, its momentum
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class PromptTuner:
    def __init__(self):
        self.model = nn.Linear(128, 16).to(DEVICE)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scores = []

    def new_task(self):
        prompt = nn.Parameter(torch.randn(200, 128, device=DEVICE) * 0.02)
        self.optimizer.add_param_group({"params": [prompt], "lr": 0.3})  # KEEPS
        # FIX: self.optimizer.param_groups[1:] = [{**self.optimizer.param_groups[0], "params": [prompt]}]; self.optimizer.state.clear()
        return prompt

    def tune(self, prompt):
        for _ in range(2):
            loss = self.model(prompt).pow(2).mean()
            self.optimizer.zero_grad(set_to_none=False)
            loss.backward()
            self.optimizer.step()
        self.scores.append(loss.item())


def main(watch):
    tuner = PromptTuner()
    for _ in range(14):
        prompt = tuner.new_task()  # ALLOCATES
        tuner.tune(prompt)  # ALLOCATES
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main(vramlens.LeakWatch())
