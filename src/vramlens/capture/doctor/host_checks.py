"""The doctor's look at the machine: Python, memory, shared memory, locked memory, disk, helper
packages, the job.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
import tempfile

from vramlens.capture.doctor.checks import CheckOutcome, note, ok, problem, unknown
from vramlens.capture.memory.memory_now import host_memory
from vramlens.capture.process_group import DistributedState
from vramlens.units import GIB, format_size

_OLDEST_PYTHON = (3, 10)
_LITTLE_DISK = 2 * GIB
_LITTLE_SHARED = GIB
"""Docker gives 64 MiB unless told otherwise."""
_SHARED = "/dev/shm"


def python() -> CheckOutcome:
    """The interpreter and the system."""
    text = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}."
    if sys.version_info[:2] < _OLDEST_PYTHON:
        return problem(text, "Use Python 3.10 or newer.")
    if sys.platform == "win32":
        return note(
            text, "'vramlens dump' needs Unix sockets: use vramlens.snapshot(path) instead."
        )
    return ok(text)


def psutil() -> CheckOutcome:
    """psutil, which Linux hardly needs."""
    try:
        version = str(getattr(importlib.import_module("psutil"), "__version__", "unknown"))
    except ImportError:
        if os.path.exists("/proc/self/status"):
            return ok("psutil is not installed; /proc is used instead.")
        return note("psutil is not installed: host memory cannot be read.", "pip install psutil")
    return ok(f"psutil {version}.")


def memory() -> CheckOutcome:
    """The host's memory and the container's limit."""
    host = host_memory()
    if host.total_bytes is None:
        return unknown("The host's memory cannot be read here.", "pip install psutil")
    container = " (this container's limit)" if host.limit == "cgroup" else ""
    if host.available_bytes is None:
        return ok(f"{format_size(host.total_bytes)}{container} host memory.")
    text = (
        f"{format_size(host.available_bytes)} of {format_size(host.total_bytes)}{container} host"
        " memory available."
    )
    if host.available_bytes < GIB:
        do = (
            "The host may end the program before the GPU is full: free some, or raise the"
            " container's limit."
        )
        return note(text, do)
    return ok(text)


def shared_memory() -> CheckOutcome | None:
    """The shared memory that DataLoader workers and NCCL pass data through."""
    if not os.path.isdir(_SHARED):
        return None
    space = shutil.disk_usage(_SHARED)
    text = f"{_SHARED}: {format_size(space.free)} of {format_size(space.total)} free."
    if space.total < _LITTLE_SHARED:
        do = "DataLoader workers may die of a bus error: docker run --shm-size=8g, or --ipc=host."
        return note(text, do)
    return ok(text)


def locked_memory(state: DistributedState) -> CheckOutcome | None:
    """The memory that a process may lock, which InfiniBand registers."""
    try:
        resource = importlib.import_module("resource")
    except ImportError:  # Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return ok("ulimit -l: unlimited.")
    text = f"ulimit -l: {format_size(soft)}."
    if (state.world_size or 1) > 1:
        do = "If NCCL uses InfiniBand: ulimit -l unlimited, or docker run --ulimit memlock=-1."
        return note(text, do)
    return ok(f"{text[:-1]}; only InfiniBand needs more.")


def disk() -> CheckOutcome:
    """The working directory, and whether recordings can be written to it."""
    folder = os.getcwd()
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        text = f"{folder} cannot be written to ({(error.strerror or str(error)).lower()})."
        return problem(text, "Write recordings elsewhere: vramlens run -o FOLDER.")
    free = shutil.disk_usage(folder).free
    text = f"{format_size(free)} free in the working directory."
    if free < _LITTLE_DISK:
        do = "Recordings can take hundreds of MiB: vramlens run -o FOLDER on another disk."
        return note(text, do)
    return ok(text)


def process_group(state: DistributedState) -> CheckOutcome | None:
    """This process's place in a job, where there is one."""
    if state.launcher == "none" and not state.initialized:
        return None
    parts = str(state).splitlines()
    text = "; ".join(part[:1].lower() + part[1:] for part in parts).removesuffix(".") + "."
    text = text[:1].upper() + text[1:]
    if state.duplicate_device or (state.device_set_first is False and state.device):
        return problem(text, f"torch.cuda.set_device({state.local_rank or 0}) at the start.")
    if not state.initialized:
        return note(
            text,
            "Only the program itself knows its process group and device: "
            "print(vramlens.distributed_state()) there.",
        )
    return ok(text)
