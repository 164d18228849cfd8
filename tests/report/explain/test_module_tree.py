"""The tree of modules: sums hold, layers that are alike are one row, and a cut leaves a tree."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from support.recordings import DATA
from support.samples import heap
from vramlens import load
from vramlens.report.explain.holder_tables import table_of
from vramlens.report.explain.module_tree import branches_of, main_parts
from vramlens.units import MIB, format_size


def gpt(layers: int = 48, odd: int = -1) -> dict[str, int]:
    sizes = {"model.tok": 50 * MIB, "model.head": 40 * MIB, "model": 3}
    for n in range(layers):
        sizes[f"model.blocks.{n}.attn.qkv"] = 30 * MIB
        sizes[f"model.blocks.{n}.attn.proj"] = 10 * MIB
        sizes[f"model.blocks.{n}.mlp"] = (60 + 40 * (n == odd)) * MIB
    return sizes


def shown(sizes: dict[str, int]) -> list[tuple[str, int, int]]:
    return [(branch.path, branch.bytes // MIB, branch.count) for branch in branches_of(sizes)]


def test_layers_that_are_alike_are_one_row() -> None:
    assert shown(gpt()) == [
        ("model", 4890, 1),
        ("model.blocks.{0-47}", 4800, 48),
        ("model.blocks.{0-47}.mlp", 2880, 48),
        ("model.blocks.{0-47}.attn", 1920, 48),
        ("model.blocks.{0-47}.attn.qkv", 1440, 48),
        ("model.blocks.{0-47}.attn.proj", 480, 48),
        ("model.tok", 50, 1),
        ("model.head", 40, 1),
    ]
    assert branches_of(gpt())[1].note == "48 x 100.00 MiB"


def test_one_that_differs_stays_apart() -> None:
    rows = shown(gpt(12, odd=5))
    assert ("model.blocks.{6-11}", 600, 6) in rows
    assert ("model.blocks.{0-4}", 500, 5) in rows
    assert ("model.blocks.5", 140, 1) in rows


def test_the_same_bytes_for_something_else_are_not_alike() -> None:
    sizes = {"m.0.attn": 50 * MIB, "m.0.mlp": 50 * MIB, "m.1.conv": 100 * MIB}
    assert {path for path, _, _ in shown(sizes)} >= {"m.0", "m.1.conv"}


def test_a_module_with_a_number_is_not_a_layer_of_nothing() -> None:
    assert shown({"a.0": MIB, "a.1": MIB, "b.0": MIB}) == [("a.{0-1}", 2, 2), ("b.0", 1, 1)]
    assert shown({}) == []


@given(
    st.dictionaries(st.text("ab01.", max_size=9), st.integers(1, 9 * MIB), max_size=30),
    st.integers(1, 12),
)
def test_sums_and_cuts(sizes: dict[str, int], top: int) -> None:
    branches = branches_of(sizes)
    assert sum(branch.bytes for branch in branches if not branch.depth) == sum(sizes.values())
    from dataclasses import replace

    table = table_of(
        replace(heap(), by_module=sizes, requested_bytes=sum(sizes.values())), "module"
    )
    rows = replace(table, top=top).top_rows()
    assert len(rows) == min(top, len(branches)) or not sizes
    above: list[int] = []
    for row in rows:
        assert row.depth <= len(above)  # what it lies in is shown too
        del above[row.depth :]
        assert not above or row.bytes <= above[-1]
        above.append(row.bytes)
    shown = sum(row.bytes for row in rows if not row.depth)
    hidden = format_size(sum(sizes.values()) - shown)
    note = replace(table, top=top).cut_note
    is_whole = len(rows) == len(table.rows)
    assert note == "" if is_whole else note.endswith((hidden, "inside these"))


def test_very_deep_paths() -> None:
    assert len(branches_of({"a" + ".a" * 5000: 5, "a" + ".a" * 4999 + "b": 7})) < 40


def test_the_main_parts_are_inside_of_what_holds_nearly_all() -> None:
    parts = main_parts(gpt(), 4)
    assert [part.path for part in parts] == ["model.blocks.{0-47}", "model.tok", "model.head"]
    assert parts[0].note == "48 x 100.00 MiB"
    assert [part.path for part in main_parts(gpt(odd=7), 2)] == [
        "model.blocks.{8-47}",
        "model.blocks.{0-6}",
    ]
    assert main_parts({}, 4) == ()


def test_modules_below_a_line_that_holds_most() -> None:
    lora = load(DATA / "failures/lora.cap80.vram").explain().heap
    assert lora is not None
    below = [row for row in table_of(lora, "line").rows if row.depth]
    assert below[0].name.endswith("model.layers.{1-11}")
    assert below[0].label == "of it: …model.layers.{1-11}"
    without_modules = replace(lora, modules_below_line={})
    below = [row for row in table_of(without_modules, "line").rows if row.depth]
    assert below[0].name.startswith("loss_utils.py:40")
