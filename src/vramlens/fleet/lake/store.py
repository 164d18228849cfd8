"""Store of a lake: the folder or the bucket that its files are in.

Local folders are read and written as they are; ``s3://``, ``gs://``, ``abfs://`` and whatever else
fsspec knows through fsspec.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramlens.errors import InputError, UsageError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "az": "adlfs",
}


def is_url(path: str | os.PathLike[str]) -> bool:
    """True where a path names something that is not in this machine's folders."""
    return _URL.match(os.fspath(path)) is not None


class LakeStore(ABC):
    """Where a lake's files are. Their paths are relative to its root, with ``/``."""

    def __init__(self, root: str) -> None:
        self.root = root

    @abstractmethod
    def sizes(self, folder: str) -> dict[str, int]:
        """The size in bytes of every file below a folder, by path, in the order of their names."""

    @abstractmethod
    def folders(self, folder: str) -> list[str]:
        """The names of the folders in a folder, in order."""

    @abstractmethod
    def whole(self, path: str) -> Any:
        """A context that gives a local file to write, which takes its place when the block ends."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Removes a file, or a folder with all that is in it; nothing where it is not there."""

    @abstractmethod
    def full(self, path: str) -> str:
        """A file's path as DuckDB takes it."""

    @abstractmethod
    def spellings(self, path: str) -> list[str]:
        """Every form of a file's path in which DuckDB asks whether it may be read."""

    @abstractmethod
    def attach(self, connection: DuckDBPyConnection) -> None:
        """Has a connection to DuckDB read from here."""


class LocalStore(LakeStore):
    """A folder of this machine."""

    def sizes(self, folder: str) -> dict[str, int]:
        base = Path(self.root)
        files = (path for path in (base / folder).rglob("*") if path.is_file())
        return {path.relative_to(base).as_posix(): path.stat().st_size for path in sorted(files)}

    def folders(self, folder: str) -> list[str]:
        try:
            with os.scandir(os.path.join(self.root, folder)) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except OSError:
            return []

    @contextmanager
    def whole(self, path: str) -> Iterator[str]:
        """Yields a file beside the path's own, which is put in its place at the end."""
        target = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        scratch = os.path.join(os.path.dirname(target), f".{secrets.token_hex(8)}.part")
        # Not tempfile's: its files are their owner's alone, and a lake's follow the umask.
        os.close(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        try:
            yield scratch
            os.replace(scratch, target)
        finally:
            with suppress(OSError):
                os.unlink(scratch)

    def remove(self, path: str) -> None:
        target = os.path.join(self.root, path)
        if os.path.isdir(target):
            shutil.rmtree(target, ignore_errors=True)
            return
        with suppress(FileNotFoundError):
            os.unlink(target)

    def full(self, path: str) -> str:
        return os.path.join(self.root, path)

    def spellings(self, path: str) -> list[str]:
        return [self.full(path)]

    def attach(self, connection: DuckDBPyConnection) -> None:
        """Nothing is needed: DuckDB reads this machine's files."""


class RemoteStore(LakeStore):
    """A place that fsspec reaches.

    Raises:
        UsageError: fsspec, or what it needs for this kind of place, is not installed.
    """

    def __init__(self, root: str) -> None:
        super().__init__(root.rstrip("/"))
        self._files, self._base = _file_system(self.root)

    def sizes(self, folder: str) -> dict[str, int]:
        try:
            details = self._files.find(f"{self._base}/{folder}", detail=True)
        except FileNotFoundError:
            return {}
        return {
            self._relative(path): int(detail.get("size") or 0)
            for path, detail in sorted(details.items())
        }

    def folders(self, folder: str) -> list[str]:
        try:
            entries = self._files.ls(f"{self._base}/{folder}".rstrip("/"), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(
            entry["name"].rstrip("/").rsplit("/", 1)[-1]
            for entry in entries
            if entry["type"] == "directory"
        )

    @contextmanager
    def whole(self, path: str) -> Iterator[str]:
        """Yields a file of this machine, which is uploaded at the end."""
        with tempfile.TemporaryDirectory(prefix="vramlens-lake-") as scratch:
            local = os.path.join(scratch, "part.parquet")
            yield local
            self._files.put_file(local, f"{self._base}/{path}")

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._files.rm(f"{self._base}/{path}", recursive=True)

    def full(self, path: str) -> str:
        return f"{self.root}/{path}"

    def spellings(self, path: str) -> list[str]:
        # DuckDB looks a path up first, and goes on with what fsspec calls it.
        return [self.full(path), str(self._files.unstrip_protocol(f"{self._base}/{path}"))]

    def attach(self, connection: DuckDBPyConnection) -> None:
        protocols = self._files.protocol
        name = protocols if isinstance(protocols, str) else protocols[0]
        if not connection.filesystem_is_registered(name):
            connection.register_filesystem(self._files)

    def _relative(self, path: str) -> str:
        inside = path.split(self._base, 1)[-1] if self._base else path
        return inside.lstrip("/")


def _file_system(url: str) -> tuple[Any, str]:
    """What reads and writes there, and the path within it.

    Raises:
        UsageError: it cannot be reached with what is installed.
    """
    scheme = url.partition("://")[0]
    package = _PACKAGES.get(scheme, "fsspec")
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped, unused-ignore]

        files, base = url_to_fs(url)
    except ImportError:
        packages = " ".join(dict.fromkeys(("fsspec", package)))
        raise UsageError(f"{url}: needs {packages}: pip install {packages}") from None
    except ValueError as error:
        raise UsageError(f"{url}: {str(error).splitlines()[0]}") from None
    return files, str(base).rstrip("/")


def store_of(root: str | os.PathLike[str]) -> LakeStore:
    """The store of a lake's root: a folder, or a place that fsspec reaches.

    Raises:
        UsageError: the latter, and fsspec cannot.
    """
    path = os.fspath(root)
    return RemoteStore(path) if is_url(path) else LocalStore(path)


@contextmanager
def told(root: str) -> Iterator[None]:
    """Makes whatever a place refuses one line about it: each kind of place has errors of its own.

    Raises:
        InputError: it refused something.
    """
    try:
        yield
    except (InputError, UsageError):
        raise
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{root}: {reason[:200]}") from None
