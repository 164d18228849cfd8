"""Opening what a person names: a file or standard input, compressed or not, and telling what is
inside.
"""

from __future__ import annotations

import codecs
import gzip
import io
import lzma
import os
import re
import stat
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from vramlens.allowance import EXPANDS_ALWAYS_BYTES, EXPANDS_TIMES, count_expanded, count_file
from vramlens.errors import InputError, NotARecording, UnsafeInput

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from vramlens.read.members import Members

# Where a shell names the pipes that it has opened.
_OPEN_ALREADY = ("/dev/fd", "/proc/self/fd")
# An object, or a list; "[rank1]: ..." and "[2026-11-22 10:00:00] ..." begin lines of a log.
_JSON = re.compile(rb'\s*(?:\{|\[\s*(?:[\[{"\]]|-?\d[\d.eE+-]*\s*[,\]]|(?:true|false|null)\b|$))')
_ARCHIVE = b"PK\x03\x04"
MOST_PIPED_BYTES = 4 << 30
"""Of a ``.vram`` file from a pipe, which is kept on disk while it is read; no recording is as large."""
_SPOOLED_AT_ONCE = 1 << 20
_HEAD = 4096  # bytes that are looked at to tell a text from something else
# Control characters that texts do hold: bell, backspace, tab, line and page ends, colours.
_TEXT_CONTROLS = frozenset(b"\a\b\t\n\v\f\r\x1b")
_CONTROLS = bytes(code for code in (*range(32), 127) if code not in _TEXT_CONTROLS)
_MARKS = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))

_COMPRESSIONS: tuple[tuple[bytes, Callable[..., Any]], ...] = (
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
    (b"\x1f\x8b", lambda file: gzip.GzipFile(fileobj=file)),
    (b"\x28\xb5\x2f\xfd", zstd.ZstdFile),
)
"""How the files of each compression begin, and what reads them."""
_DAMAGED = (
    EOFError,
    lzma.LZMAError,
    zlib.error,
    gzip.BadGzipFile,
    zstd.ZstdError,
    zipfile.BadZipFile,
)


class _Bounded(io.RawIOBase):
    """A decompressing stream that stops at damage (noting it) and refuses to grow out of
    proportion.
    """

    def __init__(self, stream: BinaryIO, name: str, limit_bytes: int) -> None:
        self._stream, self._name, self._left = stream, name, limit_bytes
        self.damaged = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        try:
            # readinto1 gives what there is before any damage
            got = cast(int, cast(Any, self._stream).readinto1(view))
        except _DAMAGED:
            self.damaged = True
            return 0
        except MemoryError:  # its header asks for a window larger than there is memory
            raise InputError(f"{self._name}: not enough memory to decompress it") from None
        self._left -= got
        count_expanded(got)
        if self._left < 0:
            raise UnsafeInput(
                f"{self._name}: expands more than {EXPANDS_TIMES} times; if you trust it,"
                " decompress it yourself first"
            )
        return got


class _Recoded(io.RawIOBase):
    """A stream of UTF-16, as PowerShell writes it, given out as UTF-8."""

    def __init__(self, stream: io.BufferedReader, encoding: str) -> None:
        self._stream, self._ready = stream, b""
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        ended = False
        while not self._ready and not ended:
            block = self._stream.read1(1 << 16)
            ended = not block
            self._ready = self._decoder.decode(block, ended).encode("utf-8", "replace")
        got = min(len(view), len(self._ready))
        view[:got], self._ready = self._ready[:got], self._ready[got:]
        return got


@dataclass(slots=True)
class Source:
    """An opened input.

    Attributes:
        name: as the person gave it.
        kind: "pickle", "json", "text" or "binary", by the first bytes.
        stream: its bytes, decompressed, from the first on; UTF-16 with a mark as UTF-8.
        size_bytes: of the file; None for standard input. Of a compressed file, the compressed size.
        position: how far the file itself has been read, for a progress bar.
        members: what a ``.vram`` file holds beside the snapshot; None for anything else.
    """

    name: str
    kind: str
    stream: io.BufferedReader
    size_bytes: int | None
    _file: BinaryIO
    _bounded: _Bounded | None = None
    members: Members | None = None

    def position(self) -> int:
        """How many bytes of the file have been read."""
        return self._file.tell()

    @property
    def damaged(self) -> bool:
        """Whether compressed data ended early or made no sense; true only once that has been
        met.
        """
        return self._bounded is not None and self._bounded.damaged


def whole_of(source: Source, largest_bytes: int, kind: str) -> bytes:
    """All bytes of a source; ``kind`` is what it is read as, in words.

    Raises:
        UnsafeInput: it is larger than any such file.
    """
    data = source.stream.read(largest_bytes + 1)
    if len(data) > largest_bytes:
        raise UnsafeInput(f"{source.name}: larger than any {kind} ({largest_bytes >> 20} MiB)")
    return data


def system_words(error: OSError) -> str:
    """Why the system refused, in its own words, as they stand in the midst of a line."""
    return (error.strerror or str(error)).lower()


@contextmanager
def open_source(path: str | os.PathLike[str]) -> Iterator[Source]:
    """Opens a file, or standard input for ``-``.

    Raises:
        InputError: it is missing, empty, a directory, or may not be read.
        UnsafeInput: it expands out of proportion.
    """
    name = os.fspath(path)
    if name == "-" and sys.stdin is None:
        raise InputError("standard input is closed; pass a file name")
    file = sys.stdin.buffer if name == "-" else _open_file(name)
    try:
        with _seekable(name, cast(io.BufferedReader, file)) as stream:
            yield _look_inside(name, stream)
    except OSError as error:
        # A disk that fails under us, a directory on systems that let one be opened.
        raise InputError(f"{name}: {system_words(error)}") from None
    finally:
        if name != "-":
            file.close()


@contextmanager
def _seekable(name: str, file: io.BufferedReader) -> Iterator[io.BufferedReader]:
    """The file; for a ``.vram`` file from a pipe a file without a name that holds it: what it holds is
    listed at its end.

    Raises:
        UnsafeInput: the pipe gives more than any recording.
    """
    if file.seekable() or not file.peek(len(_ARCHIVE)).startswith(_ARCHIVE):
        yield file
        return
    with tempfile.TemporaryFile() as spooled:
        left = MOST_PIPED_BYTES
        while block := file.read(min(_SPOOLED_AT_ONCE, left + 1)):
            left -= len(block)
            if left < 0:
                raise UnsafeInput(
                    f"{name}: gives more than {MOST_PIPED_BYTES:,} bytes; pass the file name"
                )
            spooled.write(block)
        spooled.seek(0)
        yield cast(io.BufferedReader, spooled)


def _open_file(name: str) -> BinaryIO:
    try:
        _refuse_what_is_no_file(name)
        return open(name, "rb")
    except IsADirectoryError:
        raise InputError(f"{name}: is a directory; choose one recording in it") from None
    except OSError as error:
        raise InputError(f"{name}: {system_words(error)}") from None


def _refuse_what_is_no_file(name: str) -> None:
    """Lets pass files, folders, and pipes that are open already (``<(zcat run.pickle.gz)``).

    Raises:
        InputError: a device, a socket, or a named pipe: reading it may never begin, or never end.
        OSError: it is not there.
    """
    mode = os.stat(name).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return
    if stat.S_ISFIFO(mode) and os.path.dirname(name) in _OPEN_ALREADY:
        return
    kind = "a named pipe" if stat.S_ISFIFO(mode) else "a device or a socket"
    raise InputError(f"{name}: is {kind}; to read a stream use - and standard input")


def _look_inside(name: str, file: io.BufferedReader) -> Source:
    size = None if name == "-" else os.fstat(file.fileno()).st_size
    count_file(name, size if file.seekable() else None)
    head = file.peek(8)
    if not head:
        raise InputError(f"{'standard input' if name == '-' else name}: is empty")
    if _is_device(file):
        raise InputError(f"{name}: is a device without an end; choose a file")
    members: Members | None = None
    bounded: _Bounded | None = None
    stream = file
    inner = _decompressed(head, file)
    if head.startswith(_ARCHIVE):
        inner, members = _open_recording(name, file, size or 0)
    if inner is not None:
        limit = max(EXPANDS_ALWAYS_BYTES, EXPANDS_TIMES * (size or 0))
        bounded = _Bounded(inner, name, limit)
        stream = _begun(bounded, name)
    kind, stream = _kind_of(stream)
    return Source(
        name=name,
        kind=kind,
        stream=stream,
        size_bytes=size,
        _file=file,
        _bounded=bounded,
        members=members,
    )


def _begun(bounded: _Bounded, name: str) -> io.BufferedReader:
    """A reader of what was compressed; InputError where there is nothing to read."""
    stream = io.BufferedReader(cast(Any, bounded), 1 << 20)
    if not stream.peek(8):
        fault = "is damaged from the start" if bounded.damaged else "contains nothing"
        raise InputError(f"{name}: {fault}")
    return stream


def _decompressed(head: bytes, file: io.BufferedReader) -> BinaryIO | None:
    """What a compressed file holds, by its first bytes; None for any other file."""
    for magic, opener in _COMPRESSIONS:
        if head.startswith(magic):
            return cast(BinaryIO, opener(file))
    return None


def _is_device(file: BinaryIO) -> bool:
    """Whether this is /dev/zero, a disk or the like; a terminal, at which a person ends the
    text, is not.
    """
    try:
        mode = os.fstat(file.fileno()).st_mode
    except (OSError, AttributeError):  # a program has put another in standard input's place
        return False
    return stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and not file.isatty())


def _open_recording(
    name: str, file: io.BufferedReader, size_bytes: int
) -> tuple[BinaryIO, Members]:
    """The snapshot inside a ``.vram`` file, and what else the file holds."""
    from vramlens.read.members import read_members

    try:
        archive = zipfile.ZipFile(file)
        names = archive.namelist()
        if "snapshot.pickle" not in names:
            is_checkpoint = any(member.endswith("/data.pkl") for member in names)
            kind = "a checkpoint of torch.save" if is_checkpoint else "a zip file"
            raise NotARecording(f"{name}: {kind}, not a vramlens recording")
        snapshot = cast(BinaryIO, archive.open("snapshot.pickle"))
    except (*_DAMAGED, NotImplementedError, RuntimeError, ValueError) as error:
        if not zipfile.is_zipfile(file):
            # The list of what it holds, which is at its end, is not there.
            size_bytes = file.seek(0, os.SEEK_END)
            raise InputError(
                f"{name}: is cut off at {size_bytes:,} bytes: copy it again, or record again"
            ) from None
        raise InputError(f"{name}: a damaged .vram file ({error})") from None
    return snapshot, read_members(archive, size_bytes)


def _kind_of(stream: io.BufferedReader) -> tuple[str, io.BufferedReader]:
    """What a stream holds, and the stream to read it from."""
    head = stream.peek(_HEAD)[:_HEAD]
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            stream.read(len(mark))
            stream = io.BufferedReader(cast(Any, _Recoded(stream, encoding)))
            return _kind(stream.peek(_HEAD)[:_HEAD]), stream
    return _kind(head), stream


def _kind(head: bytes) -> str:
    if len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5:
        return "pickle"
    if _is_binary(head):
        return "binary"
    return "json" if _JSON.match(head.removeprefix(codecs.BOM_UTF8)) else "text"


def _is_binary(head: bytes) -> bool:
    """Whether these bytes are something else than text.

    A few NUL bytes prove nothing: PyTorch 2.2 and 2.3 print GPU 0 as one. Nor does what is not
    UTF-8: a log may be in any old encoding, but then it holds next to no control characters.
    """
    controls = len(head) - len(head.translate(None, _CONTROLS))
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return controls > len(head) / 50
    return controls > len(head) / 10
