"""Tables whose entries are written anew: those that are full, and those that still get new ones."""

from __future__ import annotations

import gc
import random
from collections import deque
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


class _LongerAndLonger(_Bank):
    def push(self, key: Any) -> None:
        self.rows[key] = torch.cat((self.rows.get(key, torch.zeros(0)), torch.zeros(NUMBERS)))


class _AverageWithGraph(_Bank):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(NUMBERS, requires_grad=True)

    def push(self, key: Any) -> None:
        new = torch.zeros(NUMBERS) * self.scale
        self.rows[key] = (self.rows[key] * new) if key in self.rows else new


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


SAMPLES, STEPS = 150, 200


def _samples(first: int) -> Iterable[list[Any]]:
    """Each sample once in an epoch, which is three quarters of the run."""
    order = list(range(first, first + SAMPLES))
    epochs = [*random.Random(7).sample(order, SAMPLES), *random.Random(8).sample(order, SAMPLES)]
    return ([number] for number in epochs[:STEPS])


@pytest.mark.parametrize("first", [0, 1])
def test_a_table_that_has_every_number_gets_no_more(first: int) -> None:
    report = _report(_samples(first), _Bank())
    assert not report.found
    assert all(leak.verdict == "possible" for leak in report.leaks)


def _numbers_in_order(steps: int) -> Iterable[list[Any]]:
    rng = random.Random(9)
    return ([step, rng.randrange(step + 1)] for step in range(steps))


def _numbers_by_workers(steps: int) -> Iterable[list[Any]]:
    """Requests that are answered in any order, a few at a time; some are asked again."""
    rng = random.Random(10)
    for step in range(steps):
        window = step // 8 * 8
        yield [window + step * 5 % 8, rng.randrange(window + 1)]


def _numbers_with_gaps(steps: int) -> Iterable[list[Any]]:
    """Ids in no order, of a set of which most never come."""
    rng = random.Random(11)
    seen = [rng.randrange(100_000) for _ in range(steps)]
    return ([seen[step], seen[rng.randrange(step + 1)]] for step in range(steps))


@pytest.mark.parametrize("numbers", [_numbers_in_order, _numbers_by_workers, _numbers_with_gaps])
def test_numbers_of_what_goes_on_coming_are_told(numbers: Any) -> None:
    (leak,) = _report(numbers(160), _Bank()).found
    assert (leak.verdict, leak.owner.name) == ("proven", "_Bank.rows")


@pytest.mark.parametrize("bank_class", [_LongerAndLonger, _AverageWithGraph])
def test_entries_that_grow_when_they_are_written_anew_are_told(bank_class: type[_Bank]) -> None:
    (leak,) = _report(_samples(0), bank_class()).found
    assert "rows" in leak.owner.name


def test_every_number_once_is_told() -> None:
    """Results of each sample, none of which was written anew so far."""
    order = random.Random(12).sample(range(160), 160)
    (leak,) = _report(([number] for number in order), _Bank()).found
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


class _Recent(_Bank):
    """The last of each user: what is full lets go of its oldest."""

    def push(self, key: Any) -> None:
        self.rows.setdefault(key, deque(maxlen=3)).append(torch.zeros(NUMBERS))


def _users_who_come_again(steps: int) -> Iterable[list[Any]]:
    rng = random.Random(12)
    return ([f"user {rng.randrange(min(40, 1 + step // 2))}"] * 2 for step in range(steps))


def test_deques_that_are_full_grow_no_more() -> None:
    report = _report(_users_who_come_again(160), _Recent())
    assert not report.found


def test_deques_of_users_who_come_once_are_told() -> None:
    keys = ([f"user {step}"] * 3 for step in range(160))
    (leak,) = _report(keys, _Recent()).found
    assert leak.verdict == "proven"
