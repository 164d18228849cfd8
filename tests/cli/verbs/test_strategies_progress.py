"""``vramlens strategies`` says on standard error what it is at: a person at once, a log now and
then.
"""

from __future__ import annotations

import io
import sys

import pytest

from vramlens.cli.verbs.running import strategies

LINES = [f"predicting {name} ({number} of 3)" for number, name in enumerate("abc", 1)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines_after(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, seconds_each: float
) -> list[str]:
    now = [100.0]
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(strategies.time, "monotonic", lambda: now[0])
    progress = strategies._Progress()
    for line in LINES:
        progress(line)
        now[0] += seconds_each
    return stream.getvalue().splitlines()


def test_a_log_gets_a_line_of_each_slow_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines_after(monkeypatch, io.StringIO(), 60) == [f"vramlens: {line}" for line in LINES]


def test_a_log_of_quick_ones_gets_the_first_and_a_terminal_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert lines_after(monkeypatch, io.StringIO(), 0.1) == [f"vramlens: {LINES[0]}"]
    assert "\n".join(LINES) in "\n".join(
        line.replace("vramlens: ", "") for line in lines_after(monkeypatch, Terminal(), 0.1)
    )


def test_nobody_listening_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    strategies._Progress()("predicting a (1 of 1)")
