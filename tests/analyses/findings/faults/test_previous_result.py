"""A result that its name keeps while the next one is made, beside lists that grow and calls that use it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.analyses.finding import Finding
from vramlens.units import MIB

USER = "/home/user/search.py"
REFRESH = (USER, 30)
MAKE = (USER, 12)
BUILD: tuple[Frame, ...] = ((USER, 12, "build"), (USER, 30, "refresh"))
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((f"{TORCH}/nn/modules/module.py", 900, "_apply"),),
    "build": BUILD,
    "other": ((USER, 12, "build"), (USER, 40, "compare")),
    "search": ((USER, 50, "search"),),
}
CALL = "self.index = DenseIndex.build(self.tower)"


def told(
    folder: Path,
    statement: str,
    *names: str,
    size: int = 200,
    part: str = "build",
    inside: str = "table = torch.empty(rows, columns)",
    around: Mapping[int, str] | None = None,
) -> Finding | None:
    """What is told where earlier calls made tensors that the program calls so.

    Args:
        inside: the line of the function that makes them.
        around: the text of lines beside the statement.
    """
    run = MadeRun(FRAMES)
    run.asks("weights", 100, name="model.weight", kind="parameter")
    for name in names:
        run.asks(part, size, name=name)
        run.frees(run.asks("search", 1))
    source = {REFRESH: statement, MAKE: inside}
    source |= {(USER, line): text for line, text in (around or {}).items()}
    return finding_of(run.fails("build", 200, folder, source=source), "previous_result")


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        (CALL, "DenseIndex.table"),
        (CALL, "Miner.index"),
        ("index = DenseIndex.build(tower)", "DenseIndex.table"),
        ("index = build(tower)", "index"),
    ],
)
def test_the_earlier_value_is_there_until_the_next_is_assigned(
    tmp_path: Path, statement: str, name: str
) -> None:
    finding = told(tmp_path, statement, name)
    assert finding is not None
    assert finding.bytes == 200 * MIB
    assert finding.place is not None
    assert finding.place.line == 30
    assert f"put {statement.partition(' ')[0]} = None before this line" in (finding.fix or "")


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        (CALL, []),
        (CALL, ["DenseIndex.table[0]", "DenseIndex.table[1]"]),  # something collects them
        ("self.index = extended(self.index)", ["Miner.index"]),
        ("self.indexes.append(DenseIndex.build(self.tower))", ["DenseIndex.table"]),
        ("index = build(tower)", ["Miner.index"]),  # what another name keeps
        (CALL, ["Cache.rows"]),
        ("out = model(batch)", ["model.last['encoder']"]),
        ("self.index = list(map(build, parts))", ["list[0]"]),
        (CALL, [".cache"]),
        # A variable of the function that makes it is new in each call.
        ("self.index = build(self.tower)", ["Miner.table"]),
    ],
)
def test_what_is_no_earlier_value_of_that_name(
    tmp_path: Path, statement: str, names: list[str]
) -> None:
    assert told(tmp_path, statement, *names) is None


def test_small_ones_and_those_of_another_call(tmp_path: Path) -> None:
    assert told(tmp_path, CALL, "DenseIndex.table", size=20) is None
    assert told(tmp_path, CALL, "DenseIndex.table", part="other") is None


def test_what_the_same_call_has_made_is_no_earlier_value(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 100, name="model.weight", kind="parameter")
    run.asks("build", 200, name="DenseIndex.table")
    answer = run.fails("build", 200, tmp_path, source={REFRESH: CALL})
    assert finding_of(answer, "previous_result") is None


def test_what_the_program_drops_keeps_or_uses_itself(tmp_path: Path) -> None:
    """On the lines around the statement, and in the call."""
    assert told(tmp_path, CALL, "Miner.index", around={29: "self.index = None"}) is None
    assert told(tmp_path, CALL, "Miner.index", around={29: "del self.index"}) is None
    assert told(tmp_path, CALL, "Miner.index", around={31: "store[split] = self.index"}) is None
    assert told(tmp_path, CALL, "Miner.index", around={31: "all.append(self.index)"}) is None
    assert told(tmp_path, CALL, "Miner.index", inside="return 0.9 * self.index + x") is None
    assert told(tmp_path, CALL, "Miner.index", around={31: "log(self.index.shape)"}) is not None


def test_an_object_that_is_made_had_no_value_before(tmp_path: Path) -> None:
    frames = {**FRAMES, "build": ((USER, 30, "__init__"),)}
    run = MadeRun(frames)
    run.asks("weights", 100, name="model.weight", kind="parameter")
    run.asks("build", 200, name="ReplayBuffer.states")
    run.frees(run.asks("search", 1))
    source = {REFRESH: "self.states = torch.zeros(capacity, columns)"}
    answer = run.fails("build", 200, tmp_path, source=source)
    assert finding_of(answer, "previous_result") is None
