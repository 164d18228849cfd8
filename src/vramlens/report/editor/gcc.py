"""Findings as a compiler prints warnings: ``train.py:12:1: warning: … [leak]``.

Editors have a matcher for it already: VS Code's ``$gcc``, Vim's and Emacs's default error formats.
It wants a column, which no recording has: it is 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vramlens.report.editor.annotation import Annotation


def to_gcc(source: str, annotations: Sequence[Annotation]) -> str:
    """The findings, one line each, and below it a note for what it rests on and what to do."""
    return "".join(f"{line}\n" for note in annotations for line in _lines(source, note))


def _lines(source: str, note: Annotation) -> Iterator[str]:
    file = note.file if note.file is not None else source
    place = f"{file}:{note.line or 1}:1"
    yield f"{place}: {note.level}: {note.title} [{note.id}]"
    yield from (f"{place}: note: {text}" for text in note.words)
