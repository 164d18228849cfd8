"""Containers that a running function was given: what its callers do to them."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import vramlens  # noqa: E402

_TRAINING = """
def train(rows, watch):
    for _ in range(8):
        rows.append(torch.zeros(4096))
        watch.step()
    return watch.report()
"""
_EMPTIES_A_VARIABLE = """
def main(watch):
    rows = []
    for _ in range(1):
        report = train(rows, watch)
        rows.clear()
    return report
"""
_EMPTIES_AN_ATTRIBUTE = """
class Trainer:
    def __init__(self):
        self.outputs = []

    def fit(self, watch):
        for _ in range(1):
            report = train(watch=watch, rows=self.outputs)
            self.outputs.clear()
        return report

def main(watch):
    return Trainer().fit(watch)
"""
_EMPTIES_ANOTHER = """
def main(watch):
    rows, others = [], []
    for _ in range(1):
        report = train(rows, watch)
        others.clear()
    return report
"""
_FILLS_A_LIBRARYS_OBJECT = """
def train(log, watch):
    log.copy()
    watch.step()

def main(watch):
    log = collections.UserList()
    for _ in range(8):
        log.append(torch.zeros(4096))
        report = train(log, watch)
    return ask(log, watch)

def ask(log, watch):
    log.copy()
    return watch.report()
"""


_BEGINS = """
def begin(watch):
    return main(watch)
"""


def _report(folder: Path, program: str) -> Any:
    path = folder / "program.py"
    program += _BEGINS
    path.write_text(program)
    names: dict[str, Any] = {"torch": torch, "collections": collections, "__name__": "program"}
    exec(compile(program, str(path), "exec"), names)
    return names["begin"](vramlens.LeakWatch())


@pytest.mark.parametrize("main", [_EMPTIES_A_VARIABLE, _EMPTIES_AN_ATTRIBUTE])
def test_what_the_caller_empties_is_no_proven_leak(tmp_path: Path, main: str) -> None:
    (leak,) = _report(tmp_path, _TRAINING + main).leaks
    assert leak.verdict == "possible"
    assert "would empty it" in leak.reason


def test_another_variable_of_the_caller_says_nothing(tmp_path: Path) -> None:
    (leak,) = _report(tmp_path, _TRAINING + _EMPTIES_ANOTHER).leaks
    assert leak.verdict == "proven"


def test_what_the_caller_fills_is_named_by_its_statement(tmp_path: Path) -> None:
    (leak,) = _report(tmp_path, _FILLS_A_LIBRARYS_OBJECT).found
    assert leak.owner.source == "log.append(torch.zeros(4096))"
