"""Each error is raised from the last one, so that the newest holds all of them: https://github.com/pytorch/pytorch/issues/27600"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [{"class": ["exception"], "owner": ["last_error", "__cause__"], "bytes_per_step": 4 * 100 * (2048 + 64)}]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class RequestError(RuntimeError):
    pass


class Engine:
    def __init__(self):
        self.model = nn.Linear(64, 2048).to(DEVICE)
        self.last_error = None
        self.answered = self.refused = 0

    def generate(self, prompt):
        logits = self.model(prompt)  # ALLOCATES
        if logits.shape[0] > 50:
            raise RequestError("the prompt is too long") from self.last_error
            # FIX: raise RequestError("the prompt is too long") from None
        return logits.argmax(-1).tolist()

    def serve(self, prompt):
        try:
            answer = self.generate(prompt)  # ALLOCATES
        except RequestError as error:
            self.last_error = error  # KEEPS
            self.refused += 1
            return None
        self.answered += 1
        return answer


@torch.inference_mode()
def main():
    engine = Engine()
    watch = vramlens.LeakWatch()
    for _ in range(16):
        engine.serve(torch.ones(100, 64, device=DEVICE))  # ALLOCATES
        engine.serve(torch.ones(10, 64, device=DEVICE))
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
