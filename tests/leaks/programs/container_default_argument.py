"""A default argument that is a list lives as long as the function."""

import os

import torch

import vramlens

TRUTH = {
    "leaks": [{"class": ["container"], "owner": ["history", "smooth", "__defaults__"], "bytes_per_step": 4 * 300 * 300}]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


def smooth(frame, weight=0.8, history=[]):  # noqa: B006
    """The frame blended with the one before."""
    previous = history[-1] if history else frame
    blended = previous * weight + frame * (1 - weight)  # ALLOCATES
    history.append(blended)  # KEEPS
    # FIX: history[:] = [blended]
    return blended


class Video:
    def __init__(self, frames, size):
        self.frames, self.size = frames, size

    def __iter__(self):
        for number in range(self.frames):
            yield torch.full((self.size, self.size), float(number), device=DEVICE)


def process(video, watch):
    brightness = []
    for frame in video:
        brightness.append(float(smooth(frame).mean()))
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = process(Video(25, 300), vramlens.LeakWatch())
