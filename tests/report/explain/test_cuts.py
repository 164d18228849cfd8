"""What goes first: every rung of the ladder changes a part that a failure has."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from support.recordings import DATA
from support.samples import LEAK, error_text, failed
from vramlens import load
from vramlens.report.explain.story import LADDER, explanation_document
from vramlens.report.layout import Layout
from vramlens.report.screen import SCREEN_LINES
from vramlens.report.text import fit_to_screen


def test_every_rung_changes_the_document() -> None:
    explanation = replace(failed(), leaks=(LEAK,), ledger=error_text().ledger)
    document = explanation_document(explanation)
    steps = document.cut_steps()
    for part in document.parts:
        names = {field.name for field in fields(part)}
        for cut in part.cuts:
            assert set(cut.changes) <= names
    unused = set(range(len(LADDER))) - set(steps)
    assert not unused, [LADDER[step] for step in unused]


@pytest.mark.parametrize("name", ["resnet50.cap70", "hand_lora.cap75", "moe_lm.cap50"])
def test_a_small_screen_keeps_two_ways_and_how_sure_they_are(name: str) -> None:
    text = _on_small_screen(name)
    assert "  2. Likely: " in text
    assert " reserved by PyTorch (limit: " in text


def test_an_estimate_that_stands_alone_is_no_promise() -> None:
    assert "1. Likely: run with PYTORCH_ALLOC_CONF=" in _on_small_screen("lstm.cap97")


def _on_small_screen(name: str) -> str:
    document = explanation_document(load(DATA / f"failures/{name}.vram").explain())
    lines = fit_to_screen(document, Layout(80), SCREEN_LINES - 1)
    assert len(lines) < SCREEN_LINES
    return "\n".join(line.plain for line in lines)
