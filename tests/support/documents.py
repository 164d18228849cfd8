"""What stands in a document, for tests of what an answer says."""

from __future__ import annotations

from typing import Any, TypeVar

from rich.console import Console

from vramlens.report.document import Command, Document, Form, Heading, Part, Sentences
from vramlens.report.forms import document_of
from vramlens.report.markdown import markdown_of
from vramlens.report.text import print_document

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


def print_answer(answer: object, console: Console, *, whole: bool = False, **options: Any) -> None:
    """Prints an answer as the command line does."""
    print_document(document_of(answer, **options), console, whole=whole)


def markdown(answer: object, **options: Any) -> str:
    """An answer as Markdown."""
    return markdown_of(document_of(answer, **options))
