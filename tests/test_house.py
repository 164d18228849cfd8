"""How the source reads, in the figures of benchmarks/house.py: none falls behind."""

from __future__ import annotations

from pathlib import Path

from support.benchmark import benchmark

ROOT = Path(__file__).parents[1]
house = benchmark("house")


def test_the_source_reads_as_well_as_it_did() -> None:
    """``python benchmarks/house.py src/vramlens --worst 20 --vague`` says what is behind a figure."""
    measures = house.measure(ROOT / "src/vramlens")
    assert measures.share_above(10) <= 0.03, "functions above complexity 10"
    assert measures.share_of_names(house.VAGUE_NAMES) <= 0.005, "vague names"
    assert measures.many_positional_constructors <= 10, "constructors with six positional"
    assert measures.modules_of_one_name <= 8, "module names used twice"
    assert measures.largest_folder <= 16, "modules in the largest folder"
    assert measures.long_lines / measures.lines < 0.01, "lines above 100 characters"
