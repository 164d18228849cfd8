"""A buffer per call in a threading.local: the worker lives as long as the server."""

import os
import queue
import threading

import torch

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["thread"],
            "owner": ["buffers", "local", "_scratch"],
            "bytes_per_step": 4 * 100_000,
        }
    ],
    "stacks": False,
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")
_scratch = threading.local()


def resample(samples):
    if not hasattr(_scratch, "buffers"):
        _scratch.buffers = []
        _scratch.calls = 0
    _scratch.calls += 1
    buffer = torch.zeros(100_000, device=DEVICE)  # ALLOCATES
    buffer[: len(samples)] = samples
    _scratch.buffers.append(buffer)  # KEEPS
    # FIX: _scratch.buffers[:] = [buffer]
    return float(buffer.sum())


class Worker(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True, name="resampler")
        self.jobs, self.results = queue.Queue(), []

    def run(self):
        while True:
            samples = self.jobs.get()
            self.results.append(resample(samples))
            del samples
            self.jobs.task_done()


def main():
    worker = Worker()
    worker.start()
    watch = vramlens.LeakWatch()
    for step in range(16):
        worker.jobs.put(torch.full((1000,), float(step), device=DEVICE))
        worker.jobs.join()
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
