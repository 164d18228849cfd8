"""What goes first: every rung of the ladder changes a part that a failure has."""

from __future__ import annotations

from dataclasses import fields, replace

from support.samples import LEAK, error_text, failed
from vramlens.report.explain.story import LADDER, explanation_document


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
