"""The text of ``vramlens ranks``: what comes next depends on the cause."""

from __future__ import annotations

import io

from rich.console import Console

from recordings import data_of, read
from vramlens.ranks import compare, summarise
from vramlens.report.ranks import render_comparison


def test_a_leak_is_followed_to_what_keeps_it() -> None:
    names = [f"ranks/leak_rank1/leak_rank1.rank{rank}" for rank in (0, 1)]
    found = compare([summarise(read(data_of(name)), rank) for rank, name in enumerate(names)])
    assert found.differences[0].cause == "leak"
    console = Console(file=io.StringIO(), width=100)
    render_comparison(found, console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[-2] == "Next, what keeps the memory of rank 1:"
    assert lines[-1].startswith("  vramlens leaks ")
