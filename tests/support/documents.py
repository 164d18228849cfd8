"""What stands in a document, for tests of what an answer says."""

from __future__ import annotations

from typing import TypeVar

from vramlens.report.document import Command, Document, Form, Heading, Part, Sentences

Kind = TypeVar("Kind", bound=Part)


def parts_of(document: Document, kind: type[Kind]) -> list[Kind]:
    """The parts of one kind that a screen shows."""
    return [part for part in document.in_form(Form.TEXT) if isinstance(part, kind)]


def headings(document: Document, level: int) -> list[str]:
    """The titles of a level; the answer is the one of level 1."""
    return [part.text for part in parts_of(document, Heading) if part.level == level]


def sentences_of(document: Document) -> list[str]:
    """All sentences, in order."""
    return [text for part in parts_of(document, Sentences) for text in part.texts]


def next_step(document: Document) -> tuple[str, str]:
    """Why, and the command."""
    (command,) = parts_of(document, Command)
    return command.why, command.lines[0]
