"""A Trace is data: its modules import nothing that judges, reads or prints."""

from __future__ import annotations

import ast
from pathlib import Path

import vramlens.trace

ALLOWED = (
    "vramlens.trace",
    "vramlens.ground",
    "vramlens.leak",  # the floor below
    "vramlens.cards.card_room",  # what a prediction leaves open: data as well
    "numpy",
    "__future__",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "re",
    "typing",
)


def test_trace_depends_on_nothing_else() -> None:
    for path in Path(vramlens.trace.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert all(name.startswith(ALLOWED) for name in names), (path.name, names)


def test_every_export_exists() -> None:
    for name in vramlens.trace.__all__:
        assert getattr(vramlens.trace, name) is not None
