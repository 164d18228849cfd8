"""Output: an answer as text or JSON, on standard output or in a file that is written whole or
not at all.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TextIO, TypeGuard

from vramlens.errors import InputError, NotARecording, UsageError, VramlensError
from vramlens.foreign_text import without_controls
from vramlens.whole_file import whole_file

if TYPE_CHECKING:
    from rich.console import Console

    from vramlens.report.document import Document

_FILE_WIDTH = 100
"""Columns of a text in a file, which has no width of its own."""


class OutputError(InputError):
    """The answer could not be written."""


class _Page(io.StringIO):
    """Text in memory that is meant for a stream: it claims to be what the stream is, a terminal
    or not.
    """

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._is_terminal = stream is not None and stream.isatty()
        self._encoding = getattr(stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        return self._is_terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding


def goes_to_file(output: str | None) -> TypeGuard[str]:
    """Whether ``-o`` names a file; without it, and for ``-``, the answer goes to standard
    output.
    """
    return output not in (None, "-")


def fills_a_screen(output: str | None) -> bool:
    """Whether the answer is read on a terminal: a file and a pipe get all of it."""
    return not goes_to_file(output) and sys.stdout is not None and sys.stdout.isatty()


def as_text(draw: Callable[[Console], None], *, to_file: bool) -> str:
    """What ``draw`` prints on a console: that of standard output, or for a file one of 100
    columns without colours.
    """
    from rich.console import Console

    # Not straight to standard output: rich would end the program by itself when the reader has gone
    # away.
    page = _Page(None if to_file else sys.stdout)
    draw(Console(file=page, width=_FILE_WIDTH if to_file else None))
    return without_controls(page.getvalue(), keeps_style=True)


def drawn(
    answer: object, form: str, output: str | None, *, whole: bool = False, **options: Any
) -> str:
    """An answer as it is written: ``text``, ``markdown``, ``html`` or ``json``.

    Args:
        whole: it is not cut, not even for a screen.
        options: what its report lets one choose of a document.
    """
    from vramlens.report.forms import data_of, document_of

    if form == "json":
        return as_json(data_of(answer))
    return document_drawn(document_of(answer, **options), form, output, whole=whole)


def document_drawn(
    document: Document, form: str, output: str | None, *, whole: bool = False
) -> str:
    """A document as it is written: cut only where a screen shows it, and ``whole`` not there."""
    if form == "markdown":
        from vramlens.report.markdown import markdown_of

        return markdown_of(document)
    if form == "html":
        from vramlens.report.html import html_of

        return html_of(document)
    from vramlens.report.text import print_document

    whole = whole or not fills_a_screen(output)
    return as_text(
        lambda console: print_document(document, console, whole=whole),
        to_file=goes_to_file(output),
    )


def as_json(data: Any) -> str:
    """Data as JSON text."""
    import json

    text = json.dumps(data, indent=2, allow_nan=False) + "\n"
    # The same text in JSON, and no command (##[...]) to whoever reads the log.
    return text.replace("##", "#\\u0023")


def write_answer(text: str | Iterable[str], output: str | None, inputs: Iterable[str]) -> None:
    """Writes an answer where ``-o`` says, never over what it was made from.

    Args:
        text: all of it, or its parts, of whole lines each.

    Raises:
        UsageError: the file is one of ``inputs``, or a recording.
        OutputError: it cannot be written; nothing is left behind.
    """
    if goes_to_file(output):
        write_file(output, text, inputs)
        return
    for part in _parts(text):
        if not write_stdout(part):
            return


def _parts(text: str | Iterable[str]) -> Iterable[str]:
    return [text] if isinstance(text, str) else text


def write_stdout(text: str) -> bool:
    """True once the text is on standard output; False where its reader has gone away (``| head``),
    which is not an error.

    Raises:
        OutputError: it is closed, or the disk behind it is full.
    """
    stream = sys.stdout
    if stream is None:
        raise OutputError("standard output is closed; use -o FILE")
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = without_controls(text, keeps_style=True)
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        abandon(stream)
        return False
    except (OSError, ValueError) as error:  # ValueError: it was closed
        abandon(stream)
        raise OutputError(f"standard output: {reason_of(error)}") from None
    return True


def abandon(stream: TextIO) -> None:
    """Lets what is still buffered go nowhere, so that the interpreter's own flush at exit does
    not fail again.
    """
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def write_file(
    path: str, text: str | Iterable[str], inputs: Iterable[str], *, option: str = "-o"
) -> None:
    """Writes a file in one step: it appears whole, or what was there before stays.

    Args:
        text: all of it, or its parts, of whole lines each.
        inputs: files that must not be overwritten.
        option: what named the file.

    Raises:
        UsageError: it is one of ``inputs``, or a recording.
        OutputError: it cannot be written; nothing is left behind.
    """
    refuse_inputs(path, inputs, option=option)
    if _is_recording(path):
        raise UsageError(
            f"{option} {path}: is a recording, which this would overwrite; choose another file"
        )
    folder = os.path.dirname(path)
    if folder and not os.path.exists(folder):
        raise OutputError(f"{folder}: no such folder; nothing was written")
    try:
        if os.path.isdir(os.path.realpath(path)):
            raise IsADirectoryError(None, "is a directory; choose a file name in it")
        with whole_file(path) as file:
            for part in _parts(text):
                file.write(without_controls(part).encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise OutputError(f"{path}: {reason_of(error)}") from None


def refuse_inputs(path: str, inputs: Iterable[str], *, option: str = "-o") -> None:
    """Checks that what would be written is none of the inputs, under whatever name or link.

    Raises:
        UsageError: it is.
    """
    for source in inputs:
        with contextlib.suppress(OSError):  # it is not there
            if os.path.samefile(path, source):
                raise UsageError(f"{option} {path}: is the input file; choose another file")


def _is_recording(path: str) -> bool:
    """Whether a file is there that begins as a recording does: a run is not to be had again, an
    answer is.
    """
    from vramlens.read.opened_source import open_source

    if not os.path.isfile(path):  # nothing, a pipe, a device
        return False
    try:
        with open_source(path) as source:
            return source.kind == "pickle"
    except NotARecording:
        return False
    except VramlensError:  # empty, or damaged: some of a recording may yet be saved
        with contextlib.suppress(OSError), open(path, "rb") as file:
            return file.read(4) == b"PK\x03\x04"
        return False


def reason_of(error: Exception) -> str:
    """Why something was not written, as the end of a line."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return text[:1].lower() + text[1:] + "; nothing was written"
