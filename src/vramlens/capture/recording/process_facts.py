"""What a recording says about the process that it is of."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import sys
from typing import Any

from vramlens.capture.process_group import groups_for_meta
from vramlens.capture.recording.output_path import rank_of_process
from vramlens.ground.launcher import job_name, number_in


def process_facts(command: list[str] | None) -> dict[str, Any]:
    """A process for meta.json: its Python, its command, its machine, its place in a job."""
    return {
        "python": platform.python_version(),
        "platform": _platform(),
        "command": command or [*sys.orig_argv],
        "folder": _present_folder(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "rank": rank_of_process(),
        "local_rank": number_in(os.environ, "LOCAL_RANK"),
        "world_size": number_in(os.environ, "WORLD_SIZE"),
        "job": job_name(),
        "attempt": number_in(os.environ, "TORCHELASTIC_RESTART_COUNT"),
        "launcher_pid": os.getppid(),
        "groups": groups_for_meta(),
    }


def _platform() -> str:
    """The text that ``platform.platform`` gives on Linux, which starts ``uname -p``: a child that
    the program might wait for.
    """
    if not hasattr(os, "uname"):
        return platform.platform()
    system = os.uname()
    return "-".join(
        (system.sysname, system.release, system.machine, "with", "".join(platform.libc_ver()))
    ).rstrip("-")


def _present_folder() -> str | None:
    with contextlib.suppress(OSError):  # programs remove the folder that they are in
        return os.getcwd()
    return None
