"""Requests that wait for an answer that never comes stay as tasks."""

import asyncio
import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["container", "thread", "other"],
            "why": "no class is meant for tasks: a set of them, each holding its locals; the event they wait for holds them, too",
            "owner": ["tasks", "inputs", "handle", "acknowledged", "_waiters"],
            "bytes_per_step": 4 * 64 * 1500,
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Gateway:
    def __init__(self, model):
        self.model = model
        self.tasks = set()
        self.accepted = 0
        self.acknowledged = asyncio.Event()

    async def handle(self, number):
        inputs = torch.full((64, 1500), float(number), device=DEVICE)  # ALLOCATES
        score = float(self.model(inputs).mean())
        self.accepted += 1
        if number >= 0:
            await self.acknowledged.wait()  # KEEPS
            # FIX: await asyncio.sleep(0)
        return score, inputs.shape

    def accept(self, number):
        task = asyncio.ensure_future(self.handle(number))
        self.tasks.add(task)  # KEEPS
        task.add_done_callback(self.tasks.discard)


async def serve(watch):
    gateway = Gateway(nn.Linear(1500, 4).to(DEVICE).requires_grad_(False))
    for number in range(18):
        gateway.accept(number)
        await asyncio.sleep(0.001)
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = asyncio.run(serve(vramlens.LeakWatch()))
