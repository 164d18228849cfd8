"""Tables that make an entry for each new key: those that are all in use, and those that are not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from live.holder.fixed_programs import module_of
from vramlens.ground.verdict import Verdict
from vramlens.live.leaks.leak_report import LiveLeak

pytest.importorskip("torch")

HEAD = """\
import torch, vramlens
watch = vramlens.LeakWatch()
key_table, states = {}, []
"""
END = """
report = watch.report()
"""
PROTOTYPES = """
for step in range(40):
    for label in range(1 + step // 2):
        mean = torch.randn(64, 64)
        if label in key_table:
            key_table[label].lerp_(mean, 0.1)
        else:
            key_table[label] = mean
    watch.step()
"""
PROTOTYPES_OF_A_FUNCTION = """
def note(label, mean):
    seen = key_table.get(label)
    if seen is None:
        key_table[label] = mean
    else:
        seen.lerp_(mean, 0.1)

for step in range(40):
    for label in range(1 + step // 2):
        note(label, torch.randn(64, 64))
    watch.step()
"""
SESSIONS = """
for step in range(40):
    for session in range(max(step - 7, 0), step + 1):
        if session not in key_table:
            key_table[session] = torch.randn(64, 64)
        key_table[session].add_(1)
    watch.step()
"""
FILLED_WITH_WHAT_A_CALL_MAKES = """
def row_of(key):
    row = key_table.get(key)
    if row is None:
        row = torch.randn(64, 64)
        key_table[key] = torch.relu(row)
    return row

for step in range(40):
    row_of(step)
    watch.step()
"""
GAP_FILLED = """
def row_of(key, value):
    {look}:
        row = torch.randn(64, 64)
        key_table[key] = {kept}
    return key_table[key]

for step in range(40):
    row_of(step, torch.randn(64, 64))
    watch.step()
"""
RUNNING = """
def note(key, value):
    {look}
    key_table[key] = {kept}

for step in range(40):
    note(step, torch.randn(64, 64))
    watch.step()
"""
PUT_BACK = """
class Entry(tuple):
    def __new__(cls, row, now):
        return tuple.__new__(cls, (row, now))

def move(key, row):
    return row

def row_of(key, now):
    row = key_table.get(key)
    if row is None:
        row = torch.randn(64, 64)
    key_table[key] = {kept}
    return row

for step in range(40):
    row_of(step, step)
    watch.step()
"""
READ_ONLY = """
for step in range(40):
    for layer in range(4):
        if step not in key_table:
            key_table[step] = torch.randn(64, 64)
        key_table[step].sum()
    watch.step()
"""
NEVER_LOOKED_UP = """
for step in range(40):
    states.append(torch.randn(64, 64))
    for state in states:
        state.mul_(0.9)
    watch.step()
"""


def _leak_of(path: Path, program: str) -> LiveLeak:
    module = module_of(path / "tables.py", HEAD + program + END)
    del sys.modules["tables"]
    leak: LiveLeak = max(module.report.leaks, key=lambda leak: leak.bytes_per_step)
    return leak


@pytest.mark.parametrize("program", [PROTOTYPES, PROTOTYPES_OF_A_FUNCTION])
def test_entries_that_are_all_written_to(program: str, tmp_path: Path) -> None:
    leak = _leak_of(tmp_path, program)
    assert leak.verdict == Verdict.POSSIBLE
    assert leak.reason.startswith("an entry for each new key, and older entries are still written")
    assert leak.kind == "cache"
    assert leak.fix


@pytest.mark.parametrize("program", [SESSIONS, READ_ONLY, NEVER_LOOKED_UP])
def test_entries_that_are_forgotten_or_never_looked_up(program: str, tmp_path: Path) -> None:
    assert _leak_of(tmp_path, program).verdict == Verdict.PROVEN


def test_a_table_that_is_looked_up_and_filled_is_a_cache(tmp_path: Path) -> None:
    """The variable had nothing of the table where it is filled: what is stored is no sum."""
    leak = _leak_of(tmp_path, FILLED_WITH_WHAT_A_CALL_MAKES)
    assert leak.kind == "cache"
    assert "a limit on its keys" in (leak.fix or "")


@pytest.mark.parametrize(
    ("look", "kept"),
    [
        ("row = key_table.get(key)\n    if row is None", "row * 2"),
        ("row = key_table.get(key)\n    if not row", "torch.lerp(row, value, 0.1)"),
        ("if (row := key_table.get(key)) is None", "row * 2"),
        ("row = key_table.get(key)\n    if row is not None:\n        return\n    if 1", "row * 2"),
        ("row = key_table.get(key)\n    if key not in key_table", "row + value"),
    ],
)
def test_what_fills_a_gap_is_computed_from_nothing_that_was_there(
    look: str, kept: str, tmp_path: Path
) -> None:
    leak = _leak_of(tmp_path, GAP_FILLED.format(look=look, kept=kept))
    assert leak.kind == "cache"


@pytest.mark.parametrize(
    ("look", "kept"),
    [
        ("old = key_table.get(key, value)", "0.9 * old + 0.1 * value"),
        ("old = key_table.get(key, value)", "torch.lerp(old, value, 0.1)"),
        ("old = key_table.get(key, value)", "old.detach().lerp(value, 0.1)"),
        ("old = key_table.get(key)\n    if old is None: old = value", "torch.maximum(old, value)"),
        ("old = value\n    if key in key_table: old = key_table[key]", "torch.maximum(old, value)"),
    ],
)
def test_a_running_value_is_computed_from_the_one_that_was_there(
    look: str, kept: str, tmp_path: Path
) -> None:
    """A limit on its keys would be no fix: each key counts."""
    leak = _leak_of(tmp_path, RUNNING.format(look=look, kept=kept))
    assert leak.kind == "container"


@pytest.mark.parametrize("kept", ["row.cpu()", "move(key, row)", "Entry(row, now)", "row"])
def test_an_entry_that_is_put_back_is_still_that_of_a_cache(kept: str, tmp_path: Path) -> None:
    leak = _leak_of(tmp_path, PUT_BACK.format(kept=kept))
    assert leak.kind == "cache"
