"""Colour: the headline of a failure and the verdicts have one, on a terminal that wants it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from support.documents import print_answer
from support.recordings import DATA
from vramlens import load
from vramlens.analyses.leaks.recorded_leaks import leaks_of_trace

BOLD, BOLD_RED = "\x1b[1m", "\x1b[1;31m"


def terminal() -> Console:
    return Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")


def printed(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined]


def failure_on(console: Console) -> str:
    print_answer(load(DATA / "captured/oom_backward.vram").explain(), console)
    return printed(console)


def test_the_headline_of_a_failure_is_red() -> None:
    assert failure_on(terminal()).startswith(f"{BOLD_RED}Out of memory: ")


def test_a_leak_is_red() -> None:
    console = terminal()
    print_answer(leaks_of_trace(load(DATA / "recordings/leak_hook.pickle.xz")), console)
    assert printed(console).startswith(f"{BOLD_RED}LEAK likely: ")


def test_no_color_leaves_the_weight_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert failure_on(terminal()).startswith(f"{BOLD}Out of memory: ")


def test_a_pipe_gets_no_colour() -> None:
    assert "\x1b" not in failure_on(Console(file=io.StringIO(), width=80))
