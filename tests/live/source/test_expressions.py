"""Which name an expression stores under, and with which key."""

from __future__ import annotations

import ast

import pytest

from vramlens.live.source.expressions import receiver_of


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
