"""Which name an expression stores under, and with which key."""

from __future__ import annotations

import ast

import pytest

from vramlens.live.source.expressions import is_own_slice, receiver_of


@pytest.mark.parametrize(
    ("expression", "name", "base"),
    [
        ("self.table.loc[len(self.table)]", "table", "self"),
        ("table.at[step, 'loss']", "table", ""),
        ("self.rows[step]", "rows", "self"),
        ("self.loc", "loc", "self"),
    ],
)
def test_receiver(expression: str, name: str, base: str) -> None:
    receiver = receiver_of(ast.parse(expression, mode="eval").body)
    assert receiver is not None
    assert receiver[:2] == (name, base)


@pytest.mark.parametrize(
    ("value", "is_slice"),
    [
        ("self.rows[-100:]", True),
        ("self.rows[:-1:2] + [newest]", True),
        ("[oldest] + self.rows[1::2] + [newest]", True),
        ("self.rows[1:] + [new]", False),
        ("self.rows[:i] + [new] + self.rows[i:]", False),
        ("self.other[::2] + [new]", False),
        ("self.rows + [new]", False),
    ],
)
def test_what_shortens_a_list(value: str, *, is_slice: bool) -> None:
    assert is_own_slice(ast.parse(value, mode="eval").body, "rows", "self") is is_slice
