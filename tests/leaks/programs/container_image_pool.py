"""A pool of old pictures for the discriminator, whose size of 0 was to switch it off: it only never forgets (CycleGAN)."""

import os
import random

import torch
from torch import nn

import vramlens

TRUTH = {"leaks": [{"class": ["container"], "owner": ["images"], "bytes_per_step": 4 * 16 * 1024}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class ImagePool:
    def __init__(self, size):
        self.size = size
        self.images = []

    def query(self, batch):
        chosen = []
        for image in batch:
            self.images.append(image)  # KEEPS
            # FIX: chosen.append(image); continue
            if self.size and len(self.images) > self.size:
                chosen.append(self.images.pop(random.randrange(self.size)))
            else:
                chosen.append(image)
        return torch.stack(chosen)


def main():
    generator, pool = nn.Linear(32, 1024).to(DEVICE), ImagePool(0)
    watch = vramlens.LeakWatch()
    for _ in range(12):
        with torch.no_grad():
            fake = generator(torch.randn(16, 32, device=DEVICE))  # ALLOCATES
        pool.query(fake)
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
