"""The edit that is told for small views that keep large memory: of one part, where it is written."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

import vramlens  # noqa: E402

STEPS = 12
LOOP = """
def main(watch, kept):
    for step in range({steps}):
        cells, more = torch.zeros(128, 128).numpy(), torch.zeros(128, 128).numpy()
        {statement}
        watch.step()
    return watch.report()
"""


class OddFields:
    """Some classes have an array there."""

    _fields = torch.zeros(3).numpy()

    def __init__(self, vector: Any) -> None:
        self.vector = vector


@dataclasses.dataclass
class Landmark:
    """Its first name is no argument."""

    count: ClassVar[int] = 0
    row: int
    vector: Any
    mask: Any = dataclasses.field(default=None, kw_only=True)


Pair = namedtuple("Pair", "observation following")


def _fix_of(load_program: Callable[..., Any], statement: str) -> str:
    classes = {"Landmark": Landmark, "OddFields": OddFields, "Pair": Pair}
    program = load_program(LOOP.format(steps=STEPS, statement=statement), **classes)
    (leak,) = program.main(vramlens.LeakWatch(), []).found
    assert leak.fix is not None
    return str(leak.fix)


@pytest.mark.parametrize(
    ("statement", "edit"),
    [
        ("kept.append(Landmark(step, cells[3]))", "keep cells[3].copy() instead"),
        ("kept.append((step, cells[3]))", "keep cells[3].copy() instead"),
        ("kept.append(OddFields(cells[3]))", "keep a copy (.copy()) instead"),
        ("kept.append(Pair(cells[3], more[3]))", "keep a copy (.copy()) instead"),
        ('parts = {"h": cells[3]}; kept.append((step, parts))', "keep a copy (.copy())"),
        ("rows = [cells[3]]; kept.extend(rows)", "keep a copy (.copy()) instead"),
    ],
    ids=["a data class", "a tuple", "odd fields", "two views", "a dict inside", "several at once"],
)
def test_the_view_alone_is_copied(
    load_program: Callable[..., Any], statement: str, edit: str
) -> None:
    assert _fix_of(load_program, statement).startswith(edit)


def test_all_rows_of_a_storage_are_no_small_views(load_program: Callable[..., Any]) -> None:
    statement = "kept.extend(list(cells))"
    assert "a view keeps" not in _fix_of(load_program, statement)
