"""What grows and is read whole, or by chance, in each step is data; what is read once in many is not."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import vramlens  # noqa: E402

PROGRAM = """\
import random
import torch

class Store:
    def __init__(self):
        self.entries = []

    def add(self, number):
        self.entries.append({entry})

    def read(self):
        return {read}

def run(steps, tick):
    store = Store()
    for number in range(steps):
        store.add(number)
        {when}store.read()
        tick()
"""
TENSOR = "torch.zeros(4096) + number"


@pytest.mark.parametrize(
    ("entry", "read", "when", "verdict"),
    [
        (TENSOR, "torch.stack(self.entries).amax(0)", "", "possible"),
        (TENSOR, "self.entries[random.randrange(len(self.entries))]", "", "possible"),
        (f"({TENSOR}, 1)", "[self.entries[place] for place in (0, -1)]", "", "possible"),
        (TENSOR, "torch.stack(self.entries).amax(0)", "if number == 30: ", "proven"),
        (TENSOR, "len(self.entries)", "", "proven"),
        (TENSOR, "torch.stack(self.entries[-2:])", "", "proven"),
        (f"lambda kept={TENSOR}: kept", "[entry() for entry in self.entries]", "", "proven"),
    ],
    ids=["whole", "drawn", "by number", "once", "its length", "the last", "callbacks"],
)
def test_what_each_step_reads_is_data(
    load_program: Callable[..., types.ModuleType], entry: str, read: str, when: str, verdict: str
) -> None:
    watch = vramlens.LeakWatch()
    reports: list[Any] = []

    def tick() -> None:
        watch.step()
        if watch.steps == 40:
            reports.append(watch.report())

    load_program(PROGRAM.format(entry=entry, read=read, when=when)).run(41, tick)
    (leak,) = reports[0].leaks
    assert leak.verdict == verdict
    assert ("line 12 reads its older entries in each step" in leak.reason) == (
        verdict == "possible"
    )
