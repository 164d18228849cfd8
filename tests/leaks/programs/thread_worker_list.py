"""A background writer collects batches in a local list, for a file that it writes at the end."""

import os
import queue
import threading

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["thread", "container"],
            "why": "a list, in a frame of another thread",
            "owner": ["written", "embeddings"],
            "bytes_per_step": 4 * 256 * 300,
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


def write_embeddings(inbox):
    embeddings, names = [], []
    while (item := inbox.get()) is not None:
        name, values = item
        names.append(name)
        embeddings.append(values)  # KEEPS
        # FIX: embeddings[:] = [values]
        del item, values
        inbox.task_done()


class Exporter:
    def __init__(self):
        self.inbox = queue.Queue(maxsize=4)
        self.thread = threading.Thread(target=write_embeddings, args=(self.inbox,), daemon=True)
        self.thread.start()
        self.sent = 0

    def send(self, name, values):
        self.inbox.put((name, values))
        self.inbox.join()
        self.sent += 1


@torch.no_grad()
def export(model, exporter, watch):
    for number in range(17):
        values = model(torch.randn(256, 80, device=DEVICE))  # ALLOCATES
        exporter.send(f"batch {number}", values)
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = export(nn.Linear(80, 300).to(DEVICE), Exporter(), vramlens.LeakWatch())
