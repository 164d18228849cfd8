"""A registry on the class holds every request's pictures: https://github.com/sgl-project/sglang/pull/7340"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {"class": ["container"], "owner": ["finished", "Request", "pixel_values"], "bytes_per_step": 4 * 3 * 128 * 128}
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Request:
    """One question about one picture."""

    finished = []  # noqa: RUF012
    counter = 0

    def __init__(self, text, picture):
        Request.counter += 1
        self.rid = f"req-{Request.counter}"
        self.text = text
        self.pixel_values = picture
        self.output_ids = []

    def finish(self):
        self.output_ids.append(2)
        type(self).finished.append(self)  # KEEPS
        # FIX: type(self).finished.append(self.rid)


class Scheduler:
    def __init__(self):
        self.tower = nn.Conv2d(3, 8, 16, stride=16).to(DEVICE)
        self.waiting = []
        self.latencies = []

    def add(self, text, image):
        pixels = (image.to(DEVICE).float() - 127) / 50  # ALLOCATES
        self.waiting.append(Request(text, pixels))

    @torch.no_grad()
    def run_batch(self):
        batch, self.waiting = self.waiting, []
        for request in batch:
            features = self.tower(request.pixel_values)
            request.output_ids.append(int(features.argmax()) % 100)
            self.latencies.append(0.01)
            request.finish()


scheduler = Scheduler()
image = torch.randint(0, 255, (3, 128, 128), dtype=torch.uint8)
watch = vramlens.LeakWatch()
for turn in range(22):
    scheduler.add(f"what is in picture {turn}?", image)
    scheduler.run_batch()
    watch.step()
report = watch.report()
