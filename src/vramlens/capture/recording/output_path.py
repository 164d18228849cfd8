"""Where recordings go: one name for each process, and nothing that tells of a failure is ever
replaced.
"""

from __future__ import annotations

import json
import os
import zipfile

from vramlens.capture.process_group import initialized_group
from vramlens.ground.launcher import rank_in_environment
from vramlens.ground.program_errors import answer_of

_MOST_FAILURES = 8
_LONGEST_META = 1 << 24
_FAILED = ("oom", "error", "sigterm", "sighup", "sigabrt")


def rank_of_process() -> int | None:
    """The rank in a distributed job: from the process group, else from the launcher's
    environment.
    """
    rank = _rank_in_group()
    return rank_in_environment() if rank is None else rank


def _rank_in_group() -> int | None:
    group = initialized_group()
    return None if group is None else answer_of(lambda: int(group.get_rank()))


def absolute(path: str) -> str:
    """The path from the root on; as it is where the program has removed the folder that it is
    in.
    """
    try:
        return os.path.abspath(path)
    except OSError:
        return path


class RecordingPaths:
    """The files of one process.

    A path that ends in ``.vram`` is the file, any other a folder. In a job of several ranks the
    rank is in the name; a child process adds its number to the file it was given.
    """

    def __init__(self, output: str | None, program: str | None, *, is_child: bool = False) -> None:
        # Made absolute at once: programs change their folder.
        self._output = absolute(output or os.curdir)
        self._is_file = output is not None and output.endswith(".vram")
        self._program = os.path.splitext(os.path.basename(program or ""))[0] or "python"
        self._is_child = is_child
        # A child inherits its parent's environment, and with it a rank that need not be its own.
        self._inherited = rank_in_environment() if is_child else None
        self._failures: list[str] = []  # the recordings of failures that this process has written

    @property
    def folder(self) -> str:
        """The folder that everything goes to."""
        return os.path.dirname(self._output) if self._is_file else self._output

    def main(self) -> str:
        """The file of this process."""
        rank, own_number = rank_of_process(), f"-{os.getpid()}"
        shared = self._is_child and (
            rank is None or (_rank_in_group() is None and rank == self._inherited)
        )
        if not self._is_file:
            name = (
                f"{self._program}{own_number}"
                if rank is None
                else f"rank{rank:05d}{own_number if shared else ''}"
            )
            return os.path.join(self._output, f"{name}.vram")
        ranked = "" if rank is None else f"-rank{rank:05d}"
        return f"{self._output.removesuffix('.vram')}{ranked}{own_number if shared else ''}.vram"

    def next(self) -> str:
        """The file for the recording to be written now: the main one, or one beside the recordings
        of failures.

        Those may be of an earlier run with the same output, or of the same rank before its launcher
        restarted it. Of its own failures a process keeps eight; the eighth is replaced.
        """
        if len(self._failures) >= _MOST_FAILURES:
            return self._failures[-1]
        number = 0
        while tells_of_failure(path := self._numbered(number)):
            number += 1
        return path

    def wrote_failure(self, path: str) -> None:
        """Notes that a file tells of a failure of this process."""
        if path not in self._failures:
            self._failures.append(path)

    def may_replace(self, path: str) -> bool:
        """True where a file may be replaced: all but the recordings of failures, of which only this
        process's eighth.
        """
        is_last = len(self._failures) >= _MOST_FAILURES and path == self._failures[-1]
        return is_last or not tells_of_failure(path)

    def previous(self) -> str:
        """Where the recording before the newest is kept by ``--every``."""
        return self.next().removesuffix(".vram") + "-previous.vram"

    def _numbered(self, number: int) -> str:
        path = self.main()
        return path if not number else path.removesuffix(".vram") + f"-{number + 1}.vram"


def tells_of_failure(path: str) -> bool:
    """True where a file is the recording of a failure: out of memory, an exception, a signal that
    ended the program.
    """
    if not os.path.isfile(path):  # a pipe would keep us
        return False
    try:
        with zipfile.ZipFile(path) as archive, archive.open("meta.json") as member:
            meta = json.loads(member.read(_LONGEST_META))
        return meta["trigger"] in _FAILED and not str(meta.get("ending")).startswith(
            "KeyboardInterrupt"
        )
    except Exception:  # no recording, or a damaged one
        return False


class OutputFile:
    """A recording's way to its place, beside what another process has put there meanwhile.

    Attributes:
        path: where it is.
    """

    def __init__(self, paths: RecordingPaths, path: str) -> None:
        self._paths, self.path = paths, path
        self._is_named = path != paths.next()  # by whoever asked for it

    def put(self, partial: str, target: str) -> None:
        """Gives the written file its place; a failure's recording keeps its own."""
        while True:
            try:
                os.link(partial, target)  # unlike a rename it replaces nothing
            except FileExistsError:
                if self._is_named or self._paths.may_replace(target):
                    os.replace(partial, target)
                    return
                target = self.path = self._paths.next()
            except OSError:  # no links here
                os.replace(partial, target)
                return
            else:
                os.unlink(partial)
                return


def keep(path: str, previous: str) -> None:
    """Keeps a file under another name while it is replaced: at every moment both are whole."""
    try:
        link = f"{previous}.{os.getpid()}.partial"
        os.link(path, link)
        os.replace(link, previous)
    except OSError:  # no links here
        os.replace(path, previous)
