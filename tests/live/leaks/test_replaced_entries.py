"""Tables whose entries are written anew: those that are full, and those that still get new ones."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from vramlens import LeakWatch  # noqa: E402
from vramlens.live.leaks.leak_report import LeakReport  # noqa: E402

NUMBERS = 16 * 1024


@pytest.fixture(autouse=True)
def _collected() -> None:
    """What other tests left in circles would go meanwhile."""
    gc.collect()


class _Bank:
    def __init__(self) -> None:
        self.rows: dict[Any, Any] = {}

    def push(self, key: Any) -> None:
        self.rows[key] = torch.zeros(NUMBERS)


class _BankOfPairs(_Bank):
    def push(self, key: Any) -> None:
        self.rows[key] = (torch.zeros(NUMBERS), key)


def _report(keys_by_step: Iterable[list[Any]], bank: _Bank) -> LeakReport:
    watch = LeakWatch()
    for keys in keys_by_step:
        for key in keys:
            bank.push(key)
        watch.step()
    report: LeakReport = watch.report()
    watch.stop()
    return report


def _sweeps(steps: int, clusters: int) -> Iterable[list[Any]]:
    """Each cluster once in a sweep, in any order."""
    rng, order = random.Random(3), list[str]()
    for _ in range(steps):
        if not order:
            order = [f"cluster {number}" for number in range(clusters)]
            rng.shuffle(order)
        yield [order.pop()]


@pytest.mark.parametrize("bank_class", [_Bank, _BankOfPairs])
@pytest.mark.parametrize("clusters", [40, 64, 90])
def test_a_table_that_was_full_in_the_middle_of_the_run(
    clusters: int, bank_class: type[_Bank]
) -> None:
    report = _report(_sweeps(160, clusters), bank_class())
    assert not report.found
    assert all(leak.verdict == "possible" for leak in report.leaks)


def _new_users_and_known_ones(steps: int) -> Iterable[list[Any]]:
    rng = random.Random(5)
    return ([f"user {step}", f"user {rng.randrange(step + 1)}"] for step in range(steps))


def _of_each_epoch(steps: int) -> Iterable[list[Any]]:
    """Each sample's entry is written twice, and has another key in the next epoch."""
    return ([(step // 40, step % 40), (step // 40, step % 40 // 2)] for step in range(steps))


def _in_bursts(steps: int) -> Iterable[list[Any]]:
    """New ones come in each tenth step, eight at once; in the others one that is known."""
    rng = random.Random(6)
    for step in range(steps):
        known = max(step // 10 * 8, 1)
        new = [f"user {known + number}" for number in range(8)]
        yield new if step % 10 == 0 else [f"user {rng.randrange(known)}"]


@pytest.mark.parametrize(
    "keys_by_step",
    [_new_users_and_known_ones(160), _of_each_epoch(160), _in_bursts(160)],
    ids=["users", "epochs", "bursts"],
)
def test_a_table_that_still_gets_new_keys_is_told(keys_by_step: Iterable[list[Any]]) -> None:
    (leak,) = _report(keys_by_step, _Bank()).found
    assert (leak.verdict, leak.owner.name) == ("proven", "_Bank.rows")


def test_entries_in_order_are_told_while_other_memory_goes() -> None:
    """The counter is level in the second half: inputs go while their results pile up."""
    bank = _Bank()
    watch = LeakWatch()
    inputs: list[Any] = []
    for step in range(160):
        bank.push(step)
        inputs += [torch.zeros(NUMBERS)] if step < 80 else []
        if step >= 80:
            inputs.pop()
        watch.step()
    (leak,) = watch.report().found
    watch.stop()
    assert (leak.verdict, leak.owner.name) == ("proven", "_Bank.rows")
