"""Findings as workflow commands of GitHub: annotations on the lines of a pull request.

Rules: actions/toolkit, docs/problem-matchers.md (10 of a level a step are shown).
"""

from __future__ import annotations

from collections.abc import Sequence

from vramlens.foreign_text import workflow_command
from vramlens.report.editor.annotation import Annotation

MOST_OF_A_LEVEL = 10
_LEVELS = {"error": "error", "warning": "warning", "note": "notice"}
_LONGEST_TITLE = 200


def to_github(source: str, annotations: Sequence[Annotation]) -> str:
    """The annotations, those that GitHub would drop counted at the end."""
    lines: list[str] = []
    for level, command in _LEVELS.items():
        of_level = [note for note in annotations if note.level == level]
        lines += [_command(command, note) for note in of_level[:MOST_OF_A_LEVEL]]
        left_out = len(of_level) - MOST_OF_A_LEVEL
        if left_out > 0:
            lines.append(f"vramlens: {left_out} more of level {command}: vramlens explain {source}")
    return "".join(f"{line}\n" for line in lines) or f"vramlens: no findings in {source}\n"


def _command(kind: str, note: Annotation) -> str:
    """One annotation. A file outside of the checkout would be refused: its name goes into words."""
    words = list(note.words)
    if not note.is_inside and note.file is not None:
        words.insert(0, f"{note.file}:{note.line or 1}")
    title = f"vramlens: {note.title}"
    return workflow_command(
        kind,
        "\n".join(words) or note.title,
        file=note.file if note.is_inside else None,
        line=note.line if note.is_inside else None,
        title=title if len(title) <= _LONGEST_TITLE else f"{title[: _LONGEST_TITLE - 1]}…",
    )
