"""Lines that freeze parameters by their names are found where nothing decides whether they run."""

from __future__ import annotations

import linecache
from pathlib import Path

import pytest

from vramlens.capture.failure_facts.freezing_lines import freezing_lines

LOOP = """
def freeze(model, prefixes):
    for name, p in model.named_parameters():
        if name.startswith(prefixes):
            p.requires_grad = False
"""
CALLED = "def main():\n    model = build()\n    freeze(model, ('a',))\n"


def numbers(tmp_path: Path, source: str) -> list[int]:
    """The lines of a program that are told."""
    path = tmp_path / "train.py"
    path.write_text(source)
    linecache.checkcache(str(path))
    return [line for _file, line in freezing_lines([str(path)])]


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        (LOOP + CALLED, [5, 4]),
        (LOOP + CALLED.replace("freeze(", "self.freeze("), [5, 4]),
        (LOOP.replace("p.requires_grad = False", "p.requires_grad_(False)") + CALLED, [5, 4]),
        (LOOP.replace("p.requires_grad = False", "p.requires_grad = True") + CALLED, []),
        (LOOP.replace("name.startswith(prefixes)", "p.ndim == 1") + CALLED, []),
        (LOOP.replace("named_parameters", "parameters"), []),
        (LOOP, []),  # nobody calls it
        (LOOP + CALLED.replace("freeze(", "if args.frozen: freeze("), []),
        (
            LOOP.replace("    for", "    if args.frozen:\n     for").replace(
                "        ", "          "
            ),
            [],
        ),
        ("if __name__ == '__main__':\n    freeze(1)\n" + LOOP, [7, 6]),
        (
            "for name, p in m.named_parameters():\n  if 'a' in name:\n    p.requires_grad = False\n",
            [3, 2],
        ),
    ],
)
def test_loops_that_nothing_decides_on(tmp_path: Path, source: str, lines: list[int]) -> None:
    assert numbers(tmp_path, source) == lines


def test_files_that_are_not_there_or_too_long_tell_nothing(tmp_path: Path) -> None:
    assert freezing_lines([str(tmp_path / "none.py")]) == []
    assert numbers(tmp_path, LOOP + CALLED + "# " + "x" * 200_000) == []
