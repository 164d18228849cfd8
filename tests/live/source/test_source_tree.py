"""Which lines of a program are in a loop of their own function."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramlens.live.source.source_tree import is_in_loop

PROGRAM = """\
for step in range(3):
    work(step)

def made():
    while True:
        if wanted():
            break
    return done

for name in names:
    def hook():
        return name
    add(hook)
"""


@pytest.mark.parametrize(
    ("line", "is_in"),
    [(1, False), (2, True), (5, False), (6, True), (7, True), (8, False), (12, False), (13, True)],
)
def test_a_line_is_in_a_loop_of_its_own_function(tmp_path: Path, line: int, is_in: bool) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    assert is_in_loop(str(file), line) == is_in


def test_a_file_without_a_source_has_no_loop() -> None:
    assert not is_in_loop("<stdin>", 3)
