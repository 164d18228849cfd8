"""A list or dict built anew of its own entries, beside lists of something else, and what a backward pass
needs anyway.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.analyses.finding import Finding
from vramlens.units import MIB

USER = "/home/user/serve.py"
LINE = (USER, 30)
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((f"{TORCH}/nn/modules/module.py", 900, "_apply"),),
    "cache": ((USER, 20, "new_cache"),),
    "reorder": ((USER, 30, "reorder"),),
    "layer": (
        (f"{TORCH}/nn/modules/linear.py", 134, "forward"),
        (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl"),
        (USER, 30, "forward"),
    ),
    "attend": ((USER, 40, "attend"),),
    "backward": ((f"{TORCH}/_tensor.py", 600, "backward"), (USER, 50, "step")),
}
IN_PLACE = "cache[:] = [(k[rows], v[rows]) for k, v in cache]"


def told(folder: Path, statement: str, *, entries: int, old: str = "cache") -> Finding | None:
    """What is told where eight old entries are there, and as many new ones."""
    run = MadeRun(FRAMES)
    run.asks("weights", 100, name="model.a.weight", kind="parameter")
    for _ in range(8):
        run.asks(old, 64)
    run.asks("attend", 8)
    for _ in range(entries):
        run.asks("reorder", 64)
    answer = run.fails("reorder", 64, folder, source={LINE: statement})
    return finding_of(answer, "rebuilt_collection")


@pytest.mark.parametrize(
    "statement",
    [
        IN_PLACE,
        "cache = [(k[rows], v[rows]) for k, v in cache]",
        "cache = tuple((k[rows], v[rows]) for k, v in cache)",
        "self.cache = [k.index_select(0, rows) for k in self.cache]",
        "state = {name: t.float() for name, t in state.items()}",
        "cache = [k[rows[i]] for i, k in enumerate(cache)]",
    ],
)
def test_new_entries_beside_all_the_old_ones(tmp_path: Path, statement: str) -> None:
    finding = told(tmp_path, statement, entries=3)
    assert finding is not None
    assert finding.verdict == "likely"
    assert finding.bytes == 3 * 64 * MIB
    name = statement.split(" ")[0].removesuffix("[:]")
    assert f"{name}[i] = …" in (finding.fix or "")
    assert finding.place is not None
    assert finding.place.line == 30


@pytest.mark.parametrize(
    "statement",
    [
        "",
        "cache = [k[rows] for k in layers]",
        "cache = [k[rows] for k in cache_of(layers)]",
        "caches = [k[rows] for k in cache]",
        "cache[i] = [k[rows] for k in pairs]",
        "cache = sum(k[rows] for k in cached)",
    ],
)
def test_a_list_of_something_else(tmp_path: Path, statement: str) -> None:
    assert told(tmp_path, statement, entries=3) is None


@pytest.mark.parametrize(("entries", "is_told"), [(0, False), (1, True)])
def test_the_first_entry_needs_the_old_one(tmp_path: Path, entries: int, is_told: bool) -> None:
    assert (told(tmp_path, IN_PLACE, entries=entries) is not None) == is_told


def test_entries_that_the_same_line_made_before_are_the_old_ones(tmp_path: Path) -> None:
    finding = told(tmp_path, IN_PLACE, entries=3, old="reorder")
    assert finding is not None
    assert finding.bytes == 3 * 64 * MIB


@pytest.mark.parametrize("passes", [0, 2])
def test_a_backward_pass_needs_the_old_ones(tmp_path: Path, passes: int) -> None:
    """In the first step, too, as far as layers make the new ones."""
    run = MadeRun(FRAMES)
    run.asks("weights", 100, name="model.a.weight", kind="parameter")
    for _ in range(passes):
        kept = [run.asks("layer", 64) for _ in range(4)]
        gradient = run.asks("backward", 10)
        run.frees(*kept, gradient)
    for _ in range(3):
        run.asks("layer", 64, module="model.mix")
    source = {LINE: "xs = [self.mix(x) for x in xs]"}
    answer = run.fails("layer", 64, tmp_path, source=source)
    assert finding_of(answer, "rebuilt_collection") is None
