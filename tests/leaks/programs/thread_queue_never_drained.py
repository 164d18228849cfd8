"""Pictures for a viewer go to a queue; the viewer is gone."""

import os
import queue

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["container", "thread"],
            "why": "a queue between threads is a deque inside; nothing takes from it",
            "owner": ["pictures", "queue", "outbox"],
            "bytes_per_step": 4 * 3 * 160 * 160,
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Viewer:
    """Shows pictures, where there is a screen."""

    def __init__(self, screen):
        self.pictures = queue.Queue()
        self.screen = screen
        self.titles = []

    def show(self, title, picture):
        self.titles.append(title)
        self.pictures.put(picture)  # KEEPS
        # FIX: self.titles[-1] += f" {tuple(picture.shape)}"

    def drain(self):
        while self.screen is not None and not self.pictures.empty():
            self.screen.draw(self.pictures.get())


def train():
    net = nn.Conv2d(3, 3, 3, padding=1).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    viewer = Viewer(screen=None)
    watch = vramlens.LeakWatch()
    for step in range(16):
        image = torch.rand(3, 160, 160, device=DEVICE)
        out = net(image)
        loss = (out - image).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        viewer.show(f"step {step}", out.detach().clamp(0, 1))  # ALLOCATES
        viewer.drain()
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = train()
