"""Where a process meets who attached to it: a socket in a folder that nobody else can enter.

The folder lies where the process sees it: in a container that is not where this program's own
temporary files are. Root makes it over to the process's user, who else could not enter it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path

from vramlens.attach.messages import Connection
from vramlens.attach.target_process import TargetProcess
from vramlens.capture.triggers.dump_request import peer_of
from vramlens.errors import InputError

_ALIVE_EVERY_S = 0.2
_NOT_COPIED = shutil.ignore_patterns("__pycache__", "static", "*.so", "*.pyc")


class MeetingPoint:
    """The folder and its socket.

    Attributes:
        folder: the folder as this program sees it.
        address: the socket's path as the process sees it.
    """

    def __init__(self, target: TargetProcess) -> None:
        """Makes the folder and listens.

        Raises:
            InputError: there is no place for it.
        """
        self._target = target
        try:
            base = target.temporary_folder()
            self.folder = Path(tempfile.mkdtemp(prefix="vramlens-attach-", dir=base))
        except OSError as error:
            raise InputError(
                f"no folder can be made where process {target.pid} sees it: {error.strerror}"
            ) from None
        if target.is_of_another_user:
            os.chown(self.folder, target.uid, target.gid)
        self.address = target.path_inside(self.folder / "socket")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(str(self.folder / "socket"))
        except OSError as error:
            self.close()
            raise InputError(f"{self.folder}: no socket can be made there: {error}") from None
        if target.is_of_another_user:
            os.chown(self.folder / "socket", target.uid, target.gid)
        self._listener.listen(4)

    def package_inside(self, *, copies: bool) -> str:
        """The package's folder as the process sees it.

        Args:
            copies: whether a copy is sent along.

        Raises:
            InputError: the process cannot see it.
        """
        package = Path(__file__).parents[1]
        if copies:
            copied = self.folder / "vramlens"
            shutil.copytree(package, copied, ignore=_NOT_COPIED)
            self._make_over(copied)
            return self._target.path_inside(copied)
        package_outside = self._target.path_outside(str(package))
        with contextlib.suppress(OSError):
            if os.path.samefile(package_outside, package):
                return str(package)
        raise InputError(
            f"process {self._target.pid} does not see {package} (a container): "
            "--copy sends it along"
        )

    def file_inside(self, name: str, data: bytes) -> str:
        """The path, as the process sees it, of a new file in the folder.

        Raises:
            InputError: it cannot be written.
        """
        path = self.folder / name
        try:
            # The folder is the process's: what it may have put there is not followed anywhere else.
            with open(path, "xb") as file:
                file.write(data)
                if self._target.is_of_another_user:
                    os.fchown(file.fileno(), self._target.uid, self._target.gid)
        except OSError as error:
            raise InputError(f"{path}: it cannot be written: {error.strerror}") from None
        return self._target.path_inside(path)

    def wait_for_process(self, seconds: float) -> Connection | None:
        """The connection of the process; None where it has not come in that time.

        Raises:
            InputError: the process has ended.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._listener.settimeout(min(_ALIVE_EVERY_S, max(deadline - time.monotonic(), 0.01)))
            try:
                endpoint, _ = self._listener.accept()
            except TimeoutError:
                self._target.check_alive()
                continue
            peer = peer_of(endpoint)
            if peer is None or peer.pid == self._target.pid:
                self._stop_listening()
                return Connection(endpoint)
            endpoint.close()
        return None

    def close(self, *, keeps_folder: bool = False) -> None:
        """Takes everything away: from now on nobody is waited for."""
        self._stop_listening()
        if not keeps_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _stop_listening(self) -> None:
        self._listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self.folder / "socket")

    def _make_over(self, folder: Path) -> None:
        if not self._target.is_of_another_user:
            return
        for path in (folder, *folder.rglob("*")):
            os.chown(path, self._target.uid, self._target.gid)
