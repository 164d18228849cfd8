"""A tensor that each step makes anew, larger, is found whichever steps were looked at."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

import vramlens  # noqa: E402
from vramlens.live.growth.births import Births  # noqa: E402

STEPS = 40


class Bank:
    def __init__(self) -> None:
        self.keys = torch.zeros(64, 32)
        self.batch = torch.zeros(0)

    def add(self, step: int) -> None:
        self.batch = torch.zeros(90_000 + step * step % 97)
        self.keys = torch.cat((self.keys, torch.zeros(64, 32)))


@pytest.mark.parametrize("collected", [0, 39, 40])
@pytest.mark.parametrize(
    "unseen", [(), (38,), (38, 39), (39,), (39, 40), (20, 39, 40), (20, 33, 39)]
)
def test_the_newest_tensor_is_of_one_of_the_steps_since_the_look_before(
    monkeypatch: pytest.MonkeyPatch, unseen: tuple[int, ...], collected: int
) -> None:
    look = Births._look_if_there_is_time

    def look_or_not(births: Births, step: int, kept_seconds: float = 0.0) -> bool:
        is_over = births.steps == step  # else a collection begins in the middle of it
        return not (is_over and step in unseen) and look(births, step, kept_seconds)

    monkeypatch.setattr(Births, "_look_if_there_is_time", look_or_not)
    bank = Bank()
    watch = vramlens.LeakWatch()
    for step in range(1, STEPS + 1):
        bank.add(step)
        if step == collected:
            gc.collect()  # before it, what is young is looked at
        watch.step()
    report = watch.report()
    (leak,) = report.leaks
    watch.stop()
    assert (leak.verdict, leak.bytes_per_step) == ("proven", 64 * 32 * 4)
    assert leak.owner.name == "Bank.keys"
    assert "keeps 1 tensor, which is larger after every step" in " ".join(str(report).split())


def test_the_newest_may_be_old_before_anybody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection in the step that has not ended, for which there was no time."""
    look = Births._look_if_there_is_time

    def look_or_not(births: Births, step: int, kept_seconds: float = 0.0) -> bool:
        return step <= STEPS and look(births, step, kept_seconds)

    monkeypatch.setattr(Births, "_look_if_there_is_time", look_or_not)
    bank = Bank()
    watch = vramlens.LeakWatch()
    for step in range(1, STEPS + 1):
        bank.add(step)
        watch.step()
    bank.add(STEPS + 1)
    gc.collect()
    (leak,) = watch.report().leaks
    watch.stop()
    assert (leak.verdict, leak.owner.name) == ("proven", "Bank.keys")


class Unequal(Bank):
    """Each step brings another number of rows, as a detector's features do."""

    def add(self, step: int) -> None:
        self.batch = torch.zeros(90_000 + step * step % 97)
        rows = torch.zeros(8 + step * 37 % 50, 32)
        self.keys = torch.cat((self.keys, rows))


class Cut(Unequal):
    def add(self, step: int) -> None:
        super().add(step)
        self.keys = self.keys[-800:].clone()


class Longer(Bank):
    """Batches in the order of their lengths: each is another, and the one before is used up."""

    def add(self, step: int) -> None:
        self.keys = torch.zeros(64 * step + step * 37 % 50, 32)


@pytest.mark.parametrize("world", [Unequal, Longer])
@pytest.mark.parametrize("seen_every", [1, 3])
def test_more_or_fewer_rows_in_each_step(
    monkeypatch: pytest.MonkeyPatch, world: type[Bank], seen_every: int
) -> None:
    look = Births._look_if_there_is_time
    monkeypatch.setattr(
        Births,
        "_look_if_there_is_time",
        lambda births, step, kept=0.0: step % seen_every == 0 and look(births, step, kept),
    )
    bank = world()
    watch = vramlens.LeakWatch()
    for step in range(1, 91):
        bank.add(step)
        watch.step()
    report = watch.report()
    watch.stop()
    sure = [leak.owner.name for leak in report.leaks if leak.sure]
    assert sure == (["Unequal.keys"] if world is Unequal else [])
    if world is Unequal:
        (leak,) = [leak for leak in report.leaks if leak.sure]
        assert leak.fix.startswith("cut self.keys to the rows that are still used")
        assert leak.bytes_per_step == pytest.approx((bank.keys.nbytes - 8192) / 90, rel=0.1)


def test_a_tensor_that_is_cut_to_its_newest_rows_grows_no_more() -> None:
    bank = Cut()
    watch = vramlens.LeakWatch()
    for step in range(1, 91):
        bank.add(step)
        watch.step()
    assert not [leak for leak in watch.report().leaks if leak.sure]
    watch.stop()
