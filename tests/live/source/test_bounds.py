"""Bounds that the source sets, and the bytes that a step adds."""

from __future__ import annotations

import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from vramlens.live.growth.looks import Looks
from vramlens.live.growth.pace import pace_of
from vramlens.live.source.bounds import cut_off, never_holds
from vramlens.live.source.source_stores import Store, read_source


def stores(folder: Path, text: str, name: str) -> list[Store]:
    path = folder / "program.py"
    path.write_text(textwrap.dedent(text))
    module = read_source(str(path))
    assert module is not None
    return module.stores[name]


@pytest.mark.parametrize(
    ("value", "cut"),
    [
        ("(self.x + [new])[-5:]", "[-5:]"),
        ("sorted([*self.x, new])[: self.size]", "[:self.size]"),
        ("self.x[1:] + [new]", "[1:]"),
        ("torch.cat((self.x, new), 1)[:, -n:]", "[:, -n:]"),
        ("heapq.nlargest(3, [*self.x, new])", "heapq.nlargest(3, [*self.x, new])"),
        ("self.x + [new]", ""),
        ("self.x[:] + [new]", ""),
        ("[*self.x, *self.x[-5:]]", ""),
        ("self.x + [new[:5]]", ""),
        ("other[-5:]", ""),
    ],
)
def test_what_is_cut_off(tmp_path: Path, value: str, cut: str) -> None:
    (store,) = stores(tmp_path, f"def f(self, new, n, other):\n    self.x = {value}\n", "x")
    assert cut_off(store) == cut


@pytest.mark.parametrize(
    ("guard", "size", "never"),
    [
        ("self.size and len(self.x) > self.size", 0, True),
        ("self.size and len(self.x) > self.size", 5, False),
        ("len(self.x) > self.size", float("inf"), True),
        ("len(self.x) >= 2 * self.size + 1", 1000, False),
        ("self.size", False, True),
        ("len(self.x) == self.size", 30, False),
        ("self.count > 9", 5, False),  # it may be counted up
        ("len(other) > self.size", float("inf"), False),
        ("unknown() or len(self.x) > LIMIT", 0, False),
        ("LIMIT < 0", 0, True),
        ("self.size is not None and len(self.x) > self.size", None, True),
        ("self.size is not None and len(self.x) > self.size", 5, False),
        ("self.size is None", None, False),
    ],
)
def test_what_never_runs(tmp_path: Path, guard: str, size: float | None, never: bool) -> None:
    text = f"""
    LIMIT = 7
    class Pool:
        def __init__(self, size):
            self.x, self.size, self.count = [], size, 0
        def add(self, new, other):
            self.count += 1
            self.x.append(new)
            if {guard}:
                self.x.pop()
    """
    removal = next(store for store in stores(tmp_path, text, "x") if store.method == "pop")
    assert never_holds(removal.guards, removal, SimpleNamespace(x=[], size=size, count=0)) == never


def test_what_follows_an_early_exit_runs_under_its_contrary(tmp_path: Path) -> None:
    text = """
    def add(x, new):
        if len(x) > 5:
            return
        x.append(new)
    """
    (store,) = [store for store in stores(tmp_path, text, "x") if store.method == "append"]
    assert len(store.guards) == 1


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([100] * 20, 100),
        ([100] * 10 + [900] + [100] * 9, 100),  # one step made something more, once
        ([100] * 5 + [0] + [100] * 14, 100),  # one was not seen
        (
            [100, 100, 100, 100, 100, 0] * 5,
            100 * 21 / 25,
        ),  # each sixth step does not leak: from step 2 to 29, 30 ends
        ([0, 100] * 12, 50),
        ([0, 0, 0, 0, 0, 0, 100, 100, 100, 100] * 5, 40),
        ([0, 0, 0, 0, 70] * 8, 14),
    ],
)
def test_bytes_a_step(sizes: list[int], expected: float) -> None:
    pace = pace_of(
        {step: size for step, size in enumerate(sizes, 1) if size},
        len(sizes),
        Looks.at_every_step(len(sizes)),
    )
    assert pace is not None
    assert pace.bytes_per_step == pytest.approx(expected, rel=0.03)
