"""The process to attach to: whose it is, what it sees, and what forbids it, in one line each."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from vramlens.capture.memory.driver import process_name
from vramlens.capture.process.process_state import (
    has_ended,
    python_descendants,
    state_of,
    status_of,
    why_not_running,
)
from vramlens.errors import InputError
from vramlens.foreign_text import visible

_PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_PARK_LOOK_S = 0.05


@dataclass(frozen=True)
class TargetProcess:
    """A process of Linux.

    Attributes:
        pid: its number here.
        uid, gid: the user and group that it runs as.
        root: where its root folder is, as seen from here: empty where it is the same.
        executable: the program's file, as the process sees it; empty where that is not told.
    """

    pid: int
    uid: int
    gid: int
    root: str
    executable: str

    @property
    def is_of_another_user(self) -> bool:
        """Whether it runs as another user than this program."""
        return self.uid != os.geteuid()

    def temporary_folder(self) -> str:
        """A folder for temporary files that both see, as seen from here."""
        return f"{self.root}/tmp" if self.root else tempfile.gettempdir()

    def path_inside(self, path: Path) -> str:
        """A path below its root as the process sees it."""
        return str(path).removeprefix(self.root)

    def path_outside(self, path: str) -> str:
        """The path under which this program sees a path of the process."""
        return f"{self.root}{path}"

    def check_alive(self) -> None:
        """Does nothing while the process runs.

        Raises:
            InputError: it has ended.
        """
        if has_ended(self.pid):
            raise InputError(f"process {self.pid} has ended")


def target_process(pid: int) -> TargetProcess:
    """The process of a number.

    Raises:
        InputError: there is none, or something surely forbids to attach to it.
    """
    if not os.path.isdir("/proc/self"):
        raise InputError("attach needs Linux: there is no /proc here")
    status = _status(pid)
    if pid == os.getpid():
        raise InputError("that is vramlens itself")
    stopped = why_not_running(pid)
    if stopped and status.get("TracerPid", "0") == "0":
        raise InputError(stopped)
    uid = int(status["Uid"].split()[1])
    if os.geteuid() not in (0, uid):
        raise InputError(
            f"process {pid} belongs to another user (uid {uid}): attach as that user, or as root"
        )
    tracer = status.get("TracerPid", "0")
    if tracer != "0":
        raise InputError(
            f"process {pid} is being traced by process {tracer} (a debugger, strace): end that"
            " first"
        )
    gid = int(status["Gid"].split()[1])
    return TargetProcess(pid=pid, uid=uid, gid=gid, root=_root(pid), executable=_executable(pid))


def permission_remedy(pid: int) -> str:
    """One line on why the system does not let this user trace a process, and what to do."""
    try:
        scope = int(_PTRACE_SCOPE.read_text())
    except (OSError, ValueError):
        scope = 0
    if scope == 3:
        return f"this system lets nobody attach to process {pid} (ptrace_scope 3): only vramlens run works"
    if scope == 2 or (scope == 1 and os.geteuid() != 0):
        return (
            f"this system lets only root attach to process {pid} (ptrace_scope {scope}): "
            f"sudo vramlens attach {pid}, or sysctl kernel.yama.ptrace_scope=0"
        )
    as_root = "" if os.geteuid() == 0 else "run as root, or "
    return (
        f"the system does not let vramlens attach to process {pid}: {as_root}start the "
        "container with `docker run --cap-add SYS_PTRACE`"
    )


def no_python(pid: int) -> str:
    """One line on a process that runs no Python; it names those of its children that do."""
    pythons = python_descendants(pid)
    if not pythons:
        return f"process {pid} does not run CPython (vramlens top shows its GPU memory)"
    name = visible(process_name(pid) or "")
    more_children = f" (and {len(pythons) - 1} more)" if len(pythons) > 1 else ""
    return (
        f"process {pid} ({name}) is not Python; process {pythons[0]}, which it started,"
        f" is{more_children}: vramlens attach {pythons[0]}"
    )


def is_parked(pid: int) -> bool:
    """True where the main thread sleeps and has not run for a moment: it waits for something."""
    first = _switches(pid)
    time.sleep(_PARK_LOOK_S)
    return first is not None and state_of(pid) == "S" and _switches(pid) == first


def _status(pid: int) -> dict[str, str]:
    try:
        return status_of(pid)
    except (OSError, OverflowError):
        raise InputError(f"there is no process {pid}: it may have ended (ps lists them)") from None


def _switches(pid: int) -> tuple[str, str] | None:
    """How often the main thread has begun to wait, or was made to."""
    names = ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
    try:
        status = _status(pid)
        return status[names[0]], status[names[1]]
    except (InputError, KeyError):
        return None


def _root(pid: int) -> str:
    """Where the root folder of a process is, as seen from here."""
    path = f"/proc/{pid}/root"
    try:
        theirs, ours = os.stat(f"{path}/"), os.stat("/")
    except OSError:
        return ""
    is_same = (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino)
    return "" if is_same and _mounts(pid) in ("", _mounts(os.getpid())) else path


def _mounts(pid: int) -> str:
    """The name of the mount namespace of a process; empty where that is not told."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def _executable(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""
