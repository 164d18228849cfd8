"""The debug switches of PyTorch, NCCL, CUDA and Python: what each does, what it costs and when to
set it.

Names and defaults are those of PyTorch's sources (2.11 and 2.13); ``source`` says where each is
read or documented.
No cost is a figure: how much a switch slows a program depends on the program.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NCCL_HEADER = "torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"
_FLIGHT_RECORDER = "torch/csrc/distributed/c10d/FlightRecorder.hpp"
_DISTRIBUTED_DOCS = "PyTorch docs, torch.distributed: debugging"
_NCCL_DOCS = "NCCL user guide, environment variables"
_CUDA_GUIDE = "CUDA programming guide, environment variables"


@dataclass(frozen=True, slots=True)
class Switch:
    """One environment variable; it is read when the program or its library starts, so set it
    before.

    Attributes:
        name: the variable.
        older: names that older versions read, and newer ones still do.
        value: what to set it to.
        default: what holds without it.
        does, when: what it changes, and when that helps.
        weight: "cheap" (may stay on), "slow" (for a debugging run only) or "changes memory"
            (figures taken with it are not those of the program without it).
        cost: what it costs, in words.
        source: the file or the manual that says so.
        bundled: the value that ``vramlens run --debug`` sets; None where it leaves the switch
            alone.
    """

    name: str
    value: str
    default: str
    does: str
    when: str
    weight: str
    cost: str
    source: str
    older: tuple[str, ...] = ()
    bundled: str | None = None

    def present(self, environment: Mapping[str, str] | None = None) -> tuple[str, str] | None:
        """The name that is set and its value; None where neither it nor an older name is."""
        known = os.environ if environment is None else environment
        return next(
            ((name, known[name]) for name in (self.name, *self.older) if name in known), None
        )

    def to_dict(self, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
        """All of it with the present value, ready for JSON."""
        found = self.present(environment)
        return {
            "name": self.name,
            "older_names": list(self.older),
            "set_as": None if found is None else found[0],
            "present": None if found is None else found[1],
            "value": self.value,
            "default": self.default,
            "does": self.does,
            "when": self.when,
            "weight": self.weight,
            "cost": self.cost,
            "source": self.source,
            "in_debug_bundle": self.bundled is not None,
        }


SWITCHES: tuple[Switch, ...] = (
    Switch(
        "TORCH_SHOW_CPP_STACKTRACES",
        "1",
        "off",
        "adds the C++ stack to every error that PyTorch's C++ code raises",
        "an error without a Python line of its own: from the backward pass, from NCCL",
        "cheap",
        "only when such an error is raised, caught ones too; with addr2line that can take minutes",
        "torch/csrc/utils/cpp_stacktraces.cpp",
        bundled="1",
    ),
    Switch(
        "TORCH_DISABLE_ADDR2LINE",
        "1",
        "depends on the version",
        "names functions in C++ stacks without line numbers, by dladdr instead of addr2line",
        "together with TORCH_SHOW_CPP_STACKTRACES: PyTorch itself warns that addr2line may hang",
        "cheap",
        "none: it saves time; the line numbers of C++ frames are lost",
        "torch/csrc/utils/cpp_stacktraces.cpp",
        bundled="1",
    ),
    Switch(
        "PYTHONFAULTHANDLER",
        "1",
        "off",
        "prints every thread's Python stack when the process dies by a signal such as SIGSEGV or SIGABRT",
        "a crash without a traceback, a watchdog that aborts the process",
        "cheap",
        "nothing until the crash",
        "Python docs, faulthandler",
        bundled="1",
    ),
    Switch(
        "TORCH_DISTRIBUTED_DEBUG",
        "INFO",
        "OFF",
        "INFO logs how DDP was built and names parameters without a gradient; DETAIL also checks every collective",
        "ranks that disagree; DETAIL when a desync must be found. Most lines need TORCH_CPP_LOG_LEVEL=INFO",
        "cheap",
        "INFO: lines when DDP is built. DETAIL: a check on every collective, for debugging only, and C++ stacks",
        _DISTRIBUTED_DOCS,
        bundled="INFO",
    ),
    Switch(
        "TORCH_FR_BUFFER_SIZE",
        "2000",
        "2000 from PyTorch 2.11; earlier versions differ, off in the oldest",
        "keeps the last collectives of this rank with their stacks: the flight recorder",
        "any job of several ranks: a hang or a rank's out-of-memory error is explained from it",
        "cheap",
        "a ring of fixed size on the host and one Python stack a collective",
        f"{_FLIGHT_RECORDER}; the older name is the only one before PyTorch 2.8 (PR 152563)",
        older=("TORCH_NCCL_TRACE_BUFFER_SIZE",),
        bundled="2000",
    ),
    Switch(
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "1",
        "on in newer versions, off in older",
        "writes the flight record to a file on a timeout or an error of the watchdog",
        "together with TORCH_FR_BUFFER_SIZE; TORCH_FR_DUMP_TEMP_FILE says where to",
        "cheap",
        "one file a rank, only when something has gone wrong",
        _NCCL_HEADER,
        bundled="1",
    ),
    Switch(
        "NCCL_DEBUG",
        "WARN",
        "unset: almost silent",
        "WARN prints NCCL's own errors and warnings; INFO its topology, channels and buffers too",
        "WARN always; INFO to see which buffers NCCL allocates",
        "cheap",
        "WARN: none to speak of. INFO: many lines from every rank at start",
        _NCCL_DOCS,
        bundled="WARN",
    ),
    Switch(
        "NCCL_DEBUG_SUBSYS",
        "INIT,ALLOC",
        "INIT,BOOTSTRAP,ENV",
        "chooses what NCCL_DEBUG=INFO prints; ALLOC prints every buffer that NCCL allocates",
        "NCCL's memory where PyTorch cannot read it (before PyTorch 2.12 and NCCL 2.29.7)",
        "cheap",
        "the lines; without NCCL_DEBUG=INFO nothing",
        _NCCL_DOCS,
    ),
    Switch(
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "3",
        "3",
        "what the watchdog does after an error: 0 nothing, 1 aborts NCCL and the process, 2 NCCL only, 3 the process",
        "leave it at 3: with 1 the flight record may not be written (PyTorch issue 121055)",
        "cheap",
        "none",
        "PyTorch docs, ProcessGroupNCCL environment variables",
        older=("NCCL_ASYNC_ERROR_HANDLING",),
    ),
    Switch(
        "TORCH_CPP_LOG_LEVEL",
        "INFO",
        "WARNING",
        "prints what PyTorch's C++ code logs: INFO, WARNING, ERROR or FATAL",
        "together with TORCH_DISTRIBUTED_DEBUG, and to see which settings the process groups took",
        "cheap",
        "log lines from every rank",
        "c10/util/Logging.cpp",
    ),
    Switch(
        "TORCH_LOGS",
        "recompiles,graph_breaks",
        "unset",
        "prints what torch.compile does; memory grows when it compiles the same code again and again",
        "a compiled program whose memory or step time grows",
        "cheap",
        "log lines when something is compiled; artifacts such as output_code print a great deal",
        "torch/_logging/_internal.py",
    ),
    Switch(
        "TORCH_NCCL_DESYNC_DEBUG",
        "1",
        "off",
        "reports at a timeout which rank was at which collective, through the store",
        "a hang of a job whose flight records are not to be had",
        "slow",
        "a message to the store at the start and the end of every collective",
        _NCCL_HEADER,
        older=("NCCL_DESYNC_DEBUG",),
    ),
    Switch(
        "CUDA_LAUNCH_BLOCKING",
        "1",
        "off",
        "makes every kernel launch wait until the kernel is done, so that an error shows at its own line",
        "an illegal memory access or a device-side assert, in a short run",
        "slow",
        "host and GPU no longer overlap: the whole program slows down",
        _CUDA_GUIDE,
    ),
    Switch(
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        "1",
        "off",
        "turns PyTorch's caching off: every tensor is its own cudaMalloc",
        "compute-sanitizer memcheck, which cannot see inside cached blocks; never while recording memory",
        "changes memory",
        "every allocation and every free waits for the GPU; recordings and memory figures mean nothing",
        "PyTorch docs, CUDA semantics: memory management",
        older=("PYTORCH_NO_HIP_MEMORY_CACHING",),
    ),
    Switch(
        "PYTHONMALLOC",
        "malloc",
        "pymalloc",
        "has Python take its objects from malloc, so that valgrind or a heap profiler sees them; debug adds checks",
        "growth of host memory",
        "slow",
        "small Python objects cost more to make; debug also pads and checks each block",
        "Python docs, command line and environment",
    ),
    Switch(
        "CUBLAS_WORKSPACE_CONFIG",
        ":4096:8",
        "PyTorch chooses by GPU",
        "sets cuBLAS' workspace for each handle and stream; it lies inside PyTorch's allocator",
        "deterministic results, or to find out how much of a peak is cuBLAS' workspace",
        "changes memory",
        "a smaller one can choose slower kernels; the workspace's own size changes",
        "aten/src/ATen/cuda/CublasHandlePool.cpp",
    ),
    Switch(
        "CUDA_MODULE_LOADING",
        "LAZY",
        "LAZY (PyTorch sets it; CUDA 12.2 and newer by itself)",
        "LAZY loads a kernel when it is first used, EAGER all at start",
        "EAGER in a test only, when memory outside PyTorch must not grow during the run",
        "changes memory",
        "EAGER: a slower start and a larger CUDA context",
        "CUDA programming guide, lazy loading; PyTorch PR 86509",
    ),
)


def switch(name: str) -> Switch:
    """The switch of a name, old or new.

    Raises:
        KeyError: there is none.
    """
    for one in SWITCHES:
        if name in (one.name, *one.older):
            return one
    raise KeyError(name)


def debug_bundle(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """What ``vramlens run --debug`` sets: the cheap switches that are not set already, by name. No
    torch is imported.

    Each can stay on for a whole run; nothing in it changes how memory is allocated.
    """
    known = os.environ if environment is None else environment
    return {
        _name_for_this_version(one): one.bundled
        for one in SWITCHES
        if one.bundled is not None and one.present(known) is None
    }


def _name_for_this_version(one: Switch) -> str:
    version = _torch_version()
    renamed_later = one.name == "TORCH_FR_BUFFER_SIZE" and version is not None and version < (2, 8)
    return one.older[0] if renamed_later else one.name


def _torch_version() -> tuple[int, int] | None:
    """From the package's metadata: importing torch here would take seconds and read settings too
    early.
    """
    import importlib.metadata

    try:
        found = re.match(r"(\d+)\.(\d+)", importlib.metadata.version("torch"))
    except Exception:
        return None
    return None if found is None else (int(found[1]), int(found[2]))
