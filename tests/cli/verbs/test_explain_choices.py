"""The choices of ``explain``, which its parser names without importing what draws them."""

from __future__ import annotations

from vramlens.cli.verbs.reading.explain import _ANNOTATIONS, _GROUPINGS
from vramlens.report.editor import FORMATS
from vramlens.report.explain.holder_tables import GROUPINGS


def test_the_choices_are_what_can_be_drawn() -> None:
    assert _GROUPINGS == GROUPINGS
    assert _ANNOTATIONS == FORMATS
