"""Writing a ``.vram`` file: a zip of what PyTorch recorded and what it did not know, whole or
not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import zipfile
from _queue import SimpleQueue  # Python's own, also where gevent has put another into ``queue``
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from vramlens.capture.process.own_thread import OwnThread
from vramlens.whole_file import whole_file

SCHEMA = "vramlens.recording/1"
_FASTEST = 1  # deflate's quickest level shrinks a snapshot twelve times, its best sixteen times
# The two threads change places rarely: each time they may wait 5 ms for the interpreter's lock.
_CHUNK_BYTES = 1 << 22
_WAITING_CHUNKS = 4


def write_recording(
    path: str,
    snapshot: Mapping[str, Any],
    parts: Mapping[str, Any],
    start: bytes | None,
    *,
    put: Callable[[str, str], None] = os.replace,
    check: Callable[[str], None] | None = None,
) -> None:
    """Writes one recording; a file that was not there before is its owner's alone.

    Args:
        snapshot: what ``torch.cuda.memory._snapshot`` gave.
        parts: further members by name without ".json", each JSON-able: meta, names, ledger,
            samples, owners.
        start: the pickled state from when recording began.
        put: gives the written file its place.
        check: given the file as it is on the disk, raises where it must not take its place.

    Raises:
        OSError: it cannot be written; what was there before stays.
    """
    with (
        whole_file(path, put=put, is_private=True) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=_FASTEST) as archive,
    ):
        for name, content in parts.items():
            archive.writestr(f"{name}.json", json.dumps(content, default=str))
        if start is not None:
            archive.writestr("start.pickle", start)
        with (
            archive.open("snapshot.pickle", "w", force_zip64=True) as member,
            _beside(member) as writer,
        ):
            pickle.Pickler(writer, 4).dump(snapshot)
        if check is not None:
            archive.close()
            file.flush()
            check(file.name)


class _Writer:
    """Compresses on a thread of its own while the caller pickles: zlib lets go of the
    interpreter's lock.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._chunks: SimpleQueue[bytes | None] = SimpleQueue()
        self._room: SimpleQueue[None] = SimpleQueue()
        for _ in range(_WAITING_CHUNKS):
            self._room.put(None)
        self._error: BaseException | None = None
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._thread: OwnThread | None = OwnThread(self._run)
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter is shutting down: no new threads
            self._thread = None

    def write(self, chunk: Any) -> int:
        if self._error is not None:
            raise self._error
        block = bytes(chunk)
        self._gathered.append(block)
        self._gathered_bytes += len(block)
        if self._gathered_bytes >= _CHUNK_BYTES:
            self._hand_over()
        return len(block)

    def close(self) -> None:
        self._hand_over()
        if self._thread is not None:
            self._chunks.put(None)
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _hand_over(self) -> None:
        block, self._gathered, self._gathered_bytes = b"".join(self._gathered), [], 0
        if self._thread is None:
            self._file.write(block)
        else:
            self._room.get()
            self._chunks.put(block)

    def _run(self) -> None:
        while (chunk := self._chunks.get()) is not None:
            if self._error is None:
                try:
                    self._file.write(chunk)
                except BaseException as error:  # handed to the caller's next write
                    self._error = error
            self._room.put(None)


@contextlib.contextmanager
def _beside(file: IO[bytes]) -> Iterator[_Writer]:
    writer = _Writer(file)
    try:
        yield writer
    finally:
        writer.close()
