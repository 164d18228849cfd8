"""What a program felt of an attach."""

from __future__ import annotations

import pytest

from vramlens.attach.attachment import Attachment
from vramlens.attach.inside import pauses as pauses_module
from vramlens.attach.inside.pauses import Pauses
from vramlens.attach.story import story


def _pauses_of(
    seconds: list[float], monkeypatch: pytest.MonkeyPatch, timed: str = "step"
) -> Pauses:
    """Pauses of a program whose steps end at these times."""
    times = iter(seconds)
    pauses = Pauses()
    with monkeypatch.context() as patch:
        patch.setattr(pauses_module.time, "perf_counter", lambda: next(times))
        for _ in seconds:
            pauses.step_ended(timed)
    return pauses


@pytest.mark.parametrize(
    ("timed", "told"),
    [("step", "of its steps took"), ("call", "time between two calls of its model was")],
)
def test_the_longest_step_is_told_whoever_held_it_up(
    timed: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause = _pauses_of([5.0, 5.25, 7.25, 7.5], monkeypatch, timed).to_dict()
    assert (pause["longest_step_s"], pause["median_step_s"]) == (2.0, 0.25)
    assert (pause["longest_s"], pause["total_s"], pause["timed"]) == (0, 0, timed)
    text = " ".join(story(Attachment({"request": "watch", "pause": pause}, "thread", 0.0)).split())
    assert text.endswith(f"The longest {told} 2.00 s (median: 0.25 s).")


def test_calls_before_the_first_step_are_no_steps() -> None:
    pauses = Pauses()
    for timed in ("call", "call", "call", "call", "step", "step"):
        pauses.step_ended(timed)
    assert pauses.to_dict()["longest_step_s"] is None


def test_of_two_steps_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pause = _pauses_of([5.0, 5.25, 7.25], monkeypatch).to_dict()
    assert pause["longest_step_s"] is None
    assert "longest of its" not in story(Attachment({"pause": pause}, "thread", 0.0))
