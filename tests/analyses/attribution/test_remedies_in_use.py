"""Advice on activations: nothing that the program does already."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.recordings import DATA
from vramlens import load
from vramlens.analyses.attribution.remedies_in_use import computes_in_half, uses_checkpoints
from vramlens.analyses.recording_explanation import explain_trace

CHECKPOINT, AUTOCAST = "torch.utils.checkpoint", "autocast"


def advice(name: str, **meta: bool) -> str:
    trace = load(DATA / name)
    if meta:
        trace = replace(trace, meta=replace(trace.meta, **meta))
    findings = explain_trace(trace).findings
    return " ".join(row.fix or "" for row in findings if row.id == "activations")


@pytest.mark.parametrize(
    ("name", "in_use"),
    [
        ("recordings/gpt.pickle.xz", set()),
        ("captured/gpt.vram", set()),
        ("found/amp_casts.pickle.xz", {AUTOCAST}),  # a bare snapshot: by the casts of its weights
        ("failures/amp.cap97.vram", {AUTOCAST}),
        ("failures/ckpt.cap80.vram", {CHECKPOINT}),
        ("found/checkpointing.pickle.xz", {CHECKPOINT}),
    ],
)
def test_what_is_in_use_is_not_advised(name: str, in_use: set[str]) -> None:
    words = advice(name)
    assert {cure for cure in (CHECKPOINT, AUTOCAST) if cure in words} == (
        {CHECKPOINT, AUTOCAST} - in_use
    )


def test_autocast_that_was_seen_is_known_without_names_and_sizes() -> None:
    assert AUTOCAST in advice("captured/gpt.vram")
    assert AUTOCAST not in advice("captured/gpt.vram", has_autocast=True)


@pytest.mark.parametrize(
    "path", sorted((DATA / "captured").glob("*.vram")), ids=lambda path: path.stem
)
def test_float32_programs_are_not_taken_for_half(path: object) -> None:
    view = load(path).attribution()  # type: ignore[arg-type]
    assert not computes_in_half(view)
    assert uses_checkpoints(view) == ("checkpointed" in str(path))
