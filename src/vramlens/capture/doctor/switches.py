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
        variables = os.environ if environment is None else environment
        return next(
            ((name, variables[name]) for name in (self.name, *self.older) if name in variables),
            None,
        )

    def to_dict(self, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
        """All of it with the present value, ready for JSON."""
        setting = self.present(environment)
        return {
            "name": self.name,
            "older_names": list(self.older),
            "set_as": None if setting is None else setting[0],
            "present": None if setting is None else setting[1],
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
        name="TORCH_SHOW_CPP_STACKTRACES",
        value="1",
        default="off",
        does="adds the C++ stack to every error that PyTorch's C++ code raises",
        when="an error without a Python line of its own: from the backward pass, from NCCL",
        weight="cheap",
        cost=(
            "only when such an error is raised, even if it is caught; with addr2line that can"
            " take minutes"
        ),
        source="torch/csrc/utils/cpp_stacktraces.cpp",
        bundled="1",
    ),
    Switch(
        name="TORCH_DISABLE_ADDR2LINE",
        value="1",
        default="depends on the version",
        does="names functions in C++ stacks without line numbers, by dladdr instead of addr2line",
        when=(
            "together with TORCH_SHOW_CPP_STACKTRACES: PyTorch itself warns that addr2line may hang"
        ),
        weight="cheap",
        cost="none: it saves time; the line numbers of C++ frames are lost",
        source="torch/csrc/utils/cpp_stacktraces.cpp",
        bundled="1",
    ),
    Switch(
        name="PYTHONFAULTHANDLER",
        value="1",
        default="off",
        does=(
            "prints every thread's Python stack when the process dies by a signal such as"
            " SIGSEGV or SIGABRT"
        ),
        when="a crash without a traceback, a watchdog that aborts the process",
        weight="cheap",
        cost="nothing until the crash",
        source="Python docs, faulthandler",
        bundled="1",
    ),
    Switch(
        name="TORCH_DISTRIBUTED_DEBUG",
        value="INFO",
        default="OFF",
        does=(
            "INFO logs how DDP was built and names parameters without a gradient; DETAIL"
            " also checks every collective"
        ),
        when=(
            "ranks that disagree; DETAIL to find a desync. Most lines need TORCH_CPP_LOG_LEVEL=INFO"
        ),
        weight="cheap",
        cost=(
            "INFO: lines when DDP is built. DETAIL: a check on every collective, for"
            " debugging only, and C++ stacks"
        ),
        source=_DISTRIBUTED_DOCS,
        bundled="INFO",
    ),
    Switch(
        name="TORCH_FR_BUFFER_SIZE",
        value="2000",
        default="2000 from PyTorch 2.11; earlier versions differ, off in the oldest",
        does="keeps the last collectives of this rank with their stacks: the flight recorder",
        when=(
            "any job of several ranks: a hang or a rank's out-of-memory error is explained from it"
        ),
        weight="cheap",
        cost="a ring of fixed size on the host, and one Python stack per collective",
        source=f"{_FLIGHT_RECORDER}; the older name is the only one before PyTorch 2.8 (PR 152563)",
        older=("TORCH_NCCL_TRACE_BUFFER_SIZE",),
        bundled="2000",
    ),
    Switch(
        name="TORCH_NCCL_DUMP_ON_TIMEOUT",
        value="1",
        default="on in newer versions, off in older",
        does="writes the flight record to a file on a timeout or an error of the watchdog",
        when="together with TORCH_FR_BUFFER_SIZE; TORCH_FR_DUMP_TEMP_FILE says where to",
        weight="cheap",
        cost="one file per rank, only when something has gone wrong",
        source=_NCCL_HEADER,
        bundled="1",
    ),
    Switch(
        name="NCCL_DEBUG",
        value="WARN",
        default="unset: almost silent",
        does=(
            "WARN prints NCCL's own errors and warnings; INFO its topology, channels and"
            " buffers too"
        ),
        when="WARN always; INFO to see which buffers NCCL allocates",
        weight="cheap",
        cost="WARN: almost nothing. INFO: many lines from every rank at start",
        source=_NCCL_DOCS,
        bundled="WARN",
    ),
    Switch(
        name="NCCL_DEBUG_SUBSYS",
        value="INIT,ALLOC",
        default="INIT,BOOTSTRAP,ENV",
        does="chooses what NCCL_DEBUG=INFO prints; ALLOC prints every buffer that NCCL allocates",
        when="NCCL's memory where PyTorch cannot read it (before PyTorch 2.12 and NCCL 2.29.7)",
        weight="cheap",
        cost="the lines; without NCCL_DEBUG=INFO nothing",
        source=_NCCL_DOCS,
    ),
    Switch(
        name="TORCH_NCCL_ASYNC_ERROR_HANDLING",
        value="3",
        default="3",
        does=(
            "what the watchdog does after an error: 0 nothing, 1 aborts NCCL and the"
            " process, 2 NCCL only, 3 the process"
        ),
        when="leave it at 3: with 1 the flight record may not be written (PyTorch issue 121055)",
        weight="cheap",
        cost="none",
        source="PyTorch docs, ProcessGroupNCCL environment variables",
        older=("NCCL_ASYNC_ERROR_HANDLING",),
    ),
    Switch(
        name="TORCH_CPP_LOG_LEVEL",
        value="INFO",
        default="WARNING",
        does="prints what PyTorch's C++ code logs: INFO, WARNING, ERROR or FATAL",
        when=(
            "together with TORCH_DISTRIBUTED_DEBUG, and to see which settings the process"
            " groups took"
        ),
        weight="cheap",
        cost="log lines from every rank",
        source="c10/util/Logging.cpp",
    ),
    Switch(
        name="TORCH_LOGS",
        value="recompiles,graph_breaks",
        default="unset",
        does=(
            "prints what torch.compile does; memory grows when it compiles the same code"
            " again and again"
        ),
        when="a compiled program whose memory or step time grows",
        weight="cheap",
        cost=("log lines when something is compiled; artifacts such as output_code print a lot"),
        source="torch/_logging/_internal.py",
    ),
    Switch(
        name="TORCH_NCCL_DESYNC_DEBUG",
        value="1",
        default="off",
        does="reports at a timeout which rank was at which collective, through the store",
        when="a hang of a job that left no flight records",
        weight="slow",
        cost="a message to the store at the start and the end of every collective",
        source=_NCCL_HEADER,
        older=("NCCL_DESYNC_DEBUG",),
    ),
    Switch(
        name="CUDA_LAUNCH_BLOCKING",
        value="1",
        default="off",
        does=(
            "makes every kernel launch wait until the kernel is done, so that an error"
            " shows at its own line"
        ),
        when="an illegal memory access or a device-side assert, in a short run",
        weight="slow",
        cost="host and GPU no longer overlap: the whole program slows down",
        source=_CUDA_GUIDE,
    ),
    Switch(
        name="PYTORCH_NO_CUDA_MEMORY_CACHING",
        value="1",
        default="off",
        does="turns PyTorch's caching off: every tensor is its own cudaMalloc",
        when=(
            "compute-sanitizer memcheck, which cannot see inside cached blocks; never"
            " while recording memory"
        ),
        weight="changes memory",
        cost=(
            "every allocation and every free waits for the GPU; recordings and memory"
            " figures mean nothing"
        ),
        source="PyTorch docs, CUDA semantics: memory management",
        older=("PYTORCH_NO_HIP_MEMORY_CACHING",),
    ),
    Switch(
        name="PYTHONMALLOC",
        value="malloc",
        default="pymalloc",
        does=(
            "has Python take its objects from malloc, so that valgrind or a heap profiler"
            " sees them; debug adds checks"
        ),
        when="growth of host memory",
        weight="slow",
        cost="small Python objects cost more to make; debug also pads and checks each block",
        source="Python docs, command line and environment",
    ),
    Switch(
        name="CUBLAS_WORKSPACE_CONFIG",
        value=":4096:8",
        default="PyTorch chooses by GPU",
        does=(
            "sets cuBLAS' workspace for each handle and stream; it lies inside PyTorch's allocator"
        ),
        when="deterministic results, or to find out how much of a peak is cuBLAS' workspace",
        weight="changes memory",
        cost="a smaller one can choose slower kernels; the workspace's own size changes",
        source="aten/src/ATen/cuda/CublasHandlePool.cpp",
    ),
    Switch(
        name="CUDA_MODULE_LOADING",
        value="LAZY",
        default="LAZY (PyTorch sets it; CUDA 12.2 and newer by itself)",
        does="LAZY loads each kernel when it is first used; EAGER loads all of them at the start",
        when="EAGER only in a test, where memory outside PyTorch must not grow during the run",
        weight="changes memory",
        cost="EAGER: a slower start and a larger CUDA context",
        source="CUDA programming guide, lazy loading; PyTorch PR 86509",
    ),
)


def switch(name: str) -> Switch:
    """The switch of a name, old or new.

    Raises:
        KeyError: there is none.
    """
    for candidate in SWITCHES:
        if name in (candidate.name, *candidate.older):
            return candidate
    raise KeyError(name)


def debug_bundle(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that ``vramlens run --debug`` sets: the cheap switches that are not set
    already, by name. No torch is imported.

    Each can stay on for a whole run; nothing in it changes how memory is allocated.
    """
    variables = os.environ if environment is None else environment
    return {
        _name_for_this_version(candidate): candidate.bundled
        for candidate in SWITCHES
        if candidate.bundled is not None and candidate.present(variables) is None
    }


def _name_for_this_version(candidate: Switch) -> str:
    version = _torch_version()
    renamed_later = (
        candidate.name == "TORCH_FR_BUFFER_SIZE" and version is not None and version < (2, 8)
    )
    return candidate.older[0] if renamed_later else candidate.name


def _torch_version() -> tuple[int, int] | None:
    """From the package's metadata: importing torch here would take seconds and read settings too
    early.
    """
    import importlib.metadata

    try:
        numbers = re.match(r"(\d+)\.(\d+)", importlib.metadata.version("torch"))
    except Exception:
        return None
    return None if numbers is None else (int(numbers[1]), int(numbers[2]))
