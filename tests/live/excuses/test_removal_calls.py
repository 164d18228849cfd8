"""Removals from another entry of a table than the one that grows."""

from __future__ import annotations

import types
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import vramlens  # noqa: E402

METER = """
from collections import defaultdict

class Meter:
    def __init__(self):
        self.pools = defaultdict(list)

    def observe(self, split):
        self.pools[split].append(torch.zeros(2048))

    def clear(self, split{default}):
        self.pools[split].clear()

    def clear_validation(self):
        self.pools["val"].clear()

def step(meter):
    meter.observe("train")

def validate(meter, split):
    meter.observe("val")
    {clear}
"""
STEPS = 24


def _verdict(
    load_program: Callable[..., types.ModuleType], clear: str, default: str = ""
) -> tuple[str, str]:
    """The verdict on the entries of the training, and their owner."""
    source = METER.replace("{clear}", clear).replace("{default}", default)
    program = load_program(source, "metering")
    meter = program.Meter()
    watch = vramlens.LeakWatch()
    for number in range(STEPS):
        program.step(meter)
        if number % 4 == 0:
            program.validate(meter, "val")
        watch.step()
    (leak,) = watch.report().leaks
    return leak.verdict, leak.owner.name


@pytest.mark.parametrize(
    "clear",
    ['meter.clear("val")', 'meter.clear(split="val")', "meter.clear_validation()"],
)
def test_what_never_takes_from_the_entry_that_grows(
    load_program: Callable[..., types.ModuleType], clear: str
) -> None:
    assert _verdict(load_program, clear) == ("proven", "Meter.pools['train']")


@pytest.mark.parametrize(
    "clear",
    ["meter.clear(split)", 'meter.clear("train" if split == "train" else "val")'],
)
def test_a_key_that_may_be_any_may_come_to_that_entry(
    load_program: Callable[..., types.ModuleType], clear: str
) -> None:
    assert _verdict(load_program, clear) == ("possible", "Meter.pools['train']")


def test_a_key_that_is_left_out_is_not_known(
    load_program: Callable[..., types.ModuleType],
) -> None:
    verdict = _verdict(load_program, "meter.clear()", default='="val"')
    assert verdict == ("possible", "Meter.pools['train']")
