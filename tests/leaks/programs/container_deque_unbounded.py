"""A deque of frames whose maxlen was forgotten; the consumer only looks at the last four."""

import os
from collections import deque

import torch
from torch import nn

import vramlens

TRUTH = {"leaks": [{"class": ["container"], "owner": ["frames"], "bytes_per_step": 4 * 3 * 120 * 160}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class FrameStack:
    def __init__(self, depth):
        self.depth = depth
        self.frames = deque()
        # FIX: self.frames = deque(maxlen=self.depth)
        self.times = deque(maxlen=depth)

    def push(self, frame):
        self.frames.append(frame)  # KEEPS
        self.times.append(len(self.times))

    def stacked(self):
        recent = list(self.frames)[-self.depth :]
        recent = [recent[0]] * (self.depth - len(recent)) + recent
        return torch.cat(recent)


class Camera:
    def grab(self):
        raw = torch.randint(0, 255, (3, 120, 160), device=DEVICE, dtype=torch.uint8)
        return raw.float().div_(255)  # ALLOCATES


def drive(steps):
    camera, stack = Camera(), FrameStack(4)
    policy = nn.Conv2d(12, 2, 8, stride=8).to(DEVICE)
    watch = vramlens.LeakWatch()
    steering = []
    for _ in range(steps):
        stack.push(camera.grab())
        with torch.no_grad():
            steering.append(policy(stack.stacked()).mean().item())
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = drive(20)
