"""Modules: what was running, by the marks of a recording that vramlens made, and of no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.recordings import data_of
from support.vram_files import GptMarks, in_validation, marked, vram
from vramlens import Recording, load
from vramlens.analyses.attribution.modules import OUTSIDE, _holder, _named_modules
from vramlens.analyses.memory.heap import heap_at
from vramlens.trace import AT_THE_END, TensorKind, TensorNames


def opened(tmp_path: Path, meta: dict[str, Any] | None = None) -> Recording:
    return load(
        vram(tmp_path / "a.vram", marked("found/eval_graph", GptMarks(in_validation)), meta)
    )


def test_each_allocation_is_its_marks(tmp_path: Path) -> None:
    recording = opened(tmp_path)
    view = recording.attribution()
    device = view.device
    strings = recording.stacks.strings
    for row in np.flatnonzero(device.allocations.born >= 0).tolist():
        mark = strings[int(device.events.user_metadata[device.allocations.born[row]])]
        number = int(view.modules.module[row])
        assert mark.removesuffix(" [eval+grad]") == (
            "" if number == OUTSIDE else view.modules.paths[number]
        )
        assert view.modules.eval_with_grad[row] == mark.endswith(" [eval+grad]")


def test_modules_and_the_rest_are_the_whole(tmp_path: Path) -> None:
    view = opened(tmp_path).attribution()
    device = view.device
    for event in [0, device.requested.peak_event, len(device.events) // 2, len(device.events) - 1]:
        heap = heap_at(view, event)
        alive = device.allocations.alive_after(event)
        outside = alive[view.modules.module[alive] == OUTSIDE]
        rest = int(device.allocations.requested_bytes[outside].sum())
        assert sum(heap.by_module.values()) + rest == heap.requested_bytes
    names = {f"model.blocks.{n}.{part}" for n in range(3) for part in ("attn", "mlp")} | {
        "model",
        "model.head",
    }
    assert set(heap_at(view, device.requested.peak_event).by_module) <= names
    layers = heap_at(view, device.requested.peak_event).by_module
    assert len({layers[f"model.blocks.{n}.mlp"] for n in range(3)}) <= 2


def test_other_programs_use_the_field_for_themselves(tmp_path: Path) -> None:
    for meta in ({"module_marks": False}, {"module_marks": "yes"}, {"module_marks": None}):
        assert opened(tmp_path, meta).peak().by_module == {}
    path = tmp_path / "a.pickle"
    path.write_bytes(data_of("found/metadata"))
    assert load(path).peak().by_module == {}
    assert (
        load(vram(tmp_path / "b.vram", data_of("found/metadata"), {"module_marks": True}))
        .peak()
        .by_module
    )


@pytest.mark.parametrize(
    "mark", [" [eval+grad]", "", ".", "..a..", "a" * 5000, "é\n\x1b[31m", "x" + ".y" * 500]
)
def test_strange_marks(tmp_path: Path, mark: str) -> None:
    snapshot = marked("recordings/graphs", lambda event: mark)
    explanation = load(vram(tmp_path / "a.vram", snapshot)).explain()
    from support.documents import markdown
    from vramlens.report.explain.holder_tables import table_of

    assert explanation.heap is not None
    assert all(row.name.isprintable() for row in table_of(explanation.heap, "module").rows)
    assert markdown(explanation, by="module")


@pytest.mark.parametrize(
    ("name", "kind", "module"),
    [
        ("model.a.b.weight", "parameter", "model.a.b"),
        ("model.a.b.weight (all-gathered)", "parameter", "model.a.b"),
        ("model.a.mean", "buffer", "model.a"),
        ("grad[model.a.b.weight]", "gradient", "model.a.b"),
        ("grad[model.a.b.weight and 3 more]", "gradient", "model"),
        ("optimizer.exp_avg[model.a.b.weight]", "optimizer_state", "model.a.b"),
        ("optimizer.lr[group 0]", "optimizer_state", ""),
        ("optimizer.params['0'][1]", "parameter", ""),
        ("grad[optimizer.params['xyz'][0]]", "gradient", ""),
        ("model.c.(flat parameter of 12)", "parameter", "model.c"),
        ("model.c.(flat parameter of 12) (all-gathered)", "parameter", "model.c"),
        ("grad[model.c.(flat parameter of 12)]", "gradient", "model.c"),
        ("model.a (all-gather buffer)", "parameter", "model.a"),
        ("model.a.b.cache['k']", "tensor", "model.a.b"),
        ("EMA.shadow['a.b.weight']", "tensor", ""),
        ("history[3]", "tensor", ""),
        ("float32[8, 1024] tensor", "tensor", ""),
        ("weight", "parameter", ""),
        ("grad[", "gradient", ""),
        ("]", "optimizer_state", ""),
    ],
)
def test_the_module_of_a_name(name: str, kind: str, module: str) -> None:
    known = [
        "model.a.b.weight",
        "model.a.mean",
        "model.c.(flat parameter of 12)",
        "optimizer.params['0'][1]",
        "weight",
    ]
    size = len(known)
    table = TensorNames(
        np.zeros(size, np.int32), np.ones(size, np.uint64), np.ones(size, np.int64),
        np.full(size, TensorKind.PARAMETER, np.uint8), np.zeros(size, np.uint8), np.full(size, AT_THE_END, np.int64), tuple(known),
    )  # fmt: skip
    assert _holder(name, TensorKind[kind.upper()], _named_modules(table)) == module
