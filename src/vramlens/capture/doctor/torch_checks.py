"""PyTorch's abilities here, asked in a process of its own: it may abort, hang or take a GPU without
harm to ours.

A wrong PYTORCH_ALLOC_CONF ends the process that imports torch (seen with 2.11), and a broken driver
can block it for good. The child prints lines of JSON; what it had said before it died counts.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vramlens.ground.conf_text import VARIABLES
from vramlens.ground.program_errors import answer_of

PATHS_OF_PARENT = (
    "import sys; sys.path[:1] = []; import json; sys.path[:] = json.loads(sys.argv[1])"
)
"""How the child's code begins. ``python -c`` puts the present folder first: a ``json.py`` in a
checkout that somebody else made would be run before anything here is.
"""
_MARK = "vramlens-doctor "
_CODE = f"{PATHS_OF_PARENT}; from vramlens.capture.doctor.torch_checks import main; main()"
_LIMIT_S = 90.0
_GPU_LIMIT_S = 180.0
_LONGEST_REASON = 160
DIED = "using the GPU"
"""How the failure begins where the child was lost on the GPU."""
_TOO_LARGE = 1 << 50
"""One PiB: no GPU has it, so that the request fails and the observer is called."""


def paths_for_child() -> str:
    """The first argument of a child whose code begins so."""
    return json.dumps(sys.path)


@dataclass(frozen=True, slots=True)
class ChildAnswer:
    """The child's answer.

    Attributes:
        facts: see ``facts``; None where torch could not be imported.
        trial: see ``try_gpu``; None where it was not asked for or did not end.
        missing: whether there is no torch at all.
        failure: why facts or trial are not there, or what else went wrong; empty if nothing.
        settings_failed: whether torch can be imported only without the allocator's settings.
    """

    facts: dict[str, Any] | None = None
    trial: dict[str, Any] | None = None
    missing: bool = False
    failure: str = ""
    settings_failed: bool = False


def ask_torch(*, gpu: bool = False, limit_s: float | None = None) -> ChildAnswer:
    """Asks a child; never raises, and never waits much longer than the limit.

    Args:
        gpu: also use the GPU: record, allocate, fail, snapshot.
        limit_s: seconds until the child is given up.
    """
    limit = limit_s if limit_s is not None else _GPU_LIMIT_S if gpu else _LIMIT_S
    answer = _ask(os.environ, gpu, limit)
    if (
        answer.facts is None
        and not answer.missing
        and any(name in os.environ for name in VARIABLES)
    ):
        without = {name: text for name, text in os.environ.items() if name not in VARIABLES}
        again = _ask(without, False, limit)
        if again.facts is not None:
            return ChildAnswer(again.facts, None, False, answer.failure, settings_failed=True)
    return answer


def _ask(environment: Mapping[str, str], gpu: bool, limit_s: float) -> ChildAnswer:
    if not sys.executable:
        return ChildAnswer(failure="this Python does not know its own executable")
    command = [sys.executable, "-c", _CODE, paths_for_child(), *(["--gpu"] if gpu else [])]
    try:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=dict(environment),
                close_fds=True,
            )
            try:
                code: int | None = child.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if child.poll() is None:
                    child.kill()
                    # One that hangs in the driver cannot be killed: it is left behind.
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(2.0)
            out.seek(0)
            err.seek(0)
            output, errors = (file.read().decode("utf-8", "replace") for file in (out, err))
    except OSError as error:
        return ChildAnswer(failure=f"a process could not be started ({error.strerror or error})")
    return _answer(output, errors, code, gpu, limit_s)


def _answer(output: str, errors: str, code: int | None, gpu: bool, limit_s: float) -> ChildAnswer:
    parts: dict[str, Any] = {}
    for line in output.splitlines():
        with contextlib.suppress(ValueError):
            parts.update(json.loads(line.removeprefix(_MARK)) if line.startswith(_MARK) else {})
    facts, trial = parts.get("facts"), parts.get("trial")
    failure = str(parts.get("error", ""))
    if not failure and (facts is None or (gpu and trial is None and facts.get("visible"))):
        activity = DIED if facts is not None else "importing torch"
        if code is None:
            failure = f"{activity} took more than {limit_s:g} seconds"
        else:
            failure = f"{activity} ended the process with code {code}{_reason(errors)}"
    return ChildAnswer(facts, trial, bool(parts.get("missing")), failure)


def _reason(errors: str) -> str:
    """The line that says why, of all that a dying process prints."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    telling = next(
        (
            line
            for line in lines
            if re.search(r"what\(\):|[Ee]rror\b", line) and "c10::Error'" not in line
        ),
        "",
    )
    text = (telling or (lines[-1] if lines else "")).removeprefix("what():").strip()
    return f": {text[:_LONGEST_REASON]}" if text else ""


def main() -> None:
    """The child: prints the facts, and with ``--gpu`` the trial."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                import torch
            except ModuleNotFoundError as error:
                _emit(
                    {"missing": error.name == "torch", "error": f"{type(error).__name__}: {error}"}
                )
                return
            torch_facts = facts(torch)
        torch_facts["warnings"] = [
            str(warning.message).partition("\n")[0]
            for warning in caught
            if "CUDA" in str(warning.message)
        ]
        _emit({"facts": torch_facts})
        if "--gpu" in sys.argv[2:] and torch_facts["visible"]:
            _emit({"trial": try_gpu()})
    except Exception as error:
        _emit(
            {
                "error": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[
                    : 2 * _LONGEST_REASON
                ]
            }
        )


def _emit(part: dict[str, Any]) -> None:
    sys.stdout.write(f"\n{_MARK}{json.dumps(part)}\n")
    sys.stdout.flush()


def facts(torch: Any) -> dict[str, Any]:
    """The facts that a torch module gives of itself without making a GPU context; None where it
    fails or is not there.

    Returns:
        version, cuda, hip, xpu (what it was built with), kind ("cuda", "xpu" or None), visible
        (GPUs), archs (those it holds kernels for), backend (of its allocator), history,
        skip_actions, marks, cheap_state, pool_ids, annotations, observer (what its snapshots can
        do), kineto, gpu_profiler, nccl, nccl_memory, distributed.
    """
    version = answer_of(lambda: str(torch.__version__))
    release = tuple(int(part) for part in re.findall(r"\d+", version or "")[:2])
    cuda: Any = getattr(torch, "cuda", None)
    c_module: Any = getattr(torch, "_C", None)
    kind = _kind(c_module)
    is_cuda = kind == "cuda"
    module: Any = None if kind is None else getattr(torch, kind, None)
    memory: Any = getattr(module, "memory", None)
    record = getattr(memory, "_record_memory_history", None)
    return {
        "version": version,
        "release": list(release),
        "cuda": answer_of(lambda: torch.version.cuda),
        "hip": answer_of(lambda: torch.version.hip),
        "xpu": answer_of(lambda: torch.version.xpu),
        "kind": kind,
        "visible": 0 if module is None else answer_of(lambda: _visible(module)),
        "archs": answer_of(lambda: str(c_module._cuda_getArchFlags()).split()) if is_cuda else None,
        "backend": answer_of(lambda: str(memory.get_allocator_backend())) if is_cuda else None,
        "history": record is not None,
        "skip_actions": _takes(record, "skip_actions"),
        "marks": hasattr(c_module, "_cuda_setMemoryMetadata"),
        "cheap_state": _takes(getattr(memory, "memory_snapshot", None), "include_traces"),
        "pool_ids": answer_of(lambda: "pool_id" in memory._snapshot.__doc__, False),
        "annotations": is_cuda and release >= (2, 5),
        "observer": hasattr(c_module, "_cuda_attach_out_of_memory_observer"),
        "kineto": answer_of(lambda: bool(torch.profiler.kineto_available())),
        "gpu_profiler": answer_of(
            lambda: any(
                str(activity).endswith("CUDA") for activity in torch.profiler.supported_activities()
            )
        ),
        "nccl": answer_of(lambda: list(cuda.nccl.version())) if is_cuda else None,
        "nccl_memory": answer_of(
            lambda: hasattr(torch._C._distributed_c10d.Backend, "memory_stats")
        ),
        "distributed": answer_of(lambda: bool(torch.distributed.is_available())),
    }


def _kind(c_module: Any) -> str | None:
    if hasattr(c_module, "_cuda_memorySnapshot"):  # ROCm answers to the same names
        return "cuda"
    return "xpu" if hasattr(c_module, "_xpu_recordMemoryHistory") else None


def _visible(module: Any) -> int:
    return int(module.device_count()) if module.is_available() else 0


def try_gpu() -> dict[str, Any]:
    """The outcome of recording on the present GPU: one allocation, one failed request, one
    snapshot.

    Returns:
        name, capability, total_bytes, free_bytes; events, python_stacks, marks, pool_ids, times,
        state (of the snapshot); observer (whether it was called for the failed request), seconds.
    """
    from vramlens.capture.torch_api import connect

    begin = time.monotonic()
    gpu, torch = connect(), sys.modules["torch"]
    if gpu is None:
        raise RuntimeError("this PyTorch has no GPU allocator that can be recorded")
    module = getattr(torch, gpu.kind)
    module.init()
    index = gpu.current_device()
    called: list[tuple[int, ...]] = []
    gpu.attach_observer(lambda *sizes: called.append(sizes))
    gpu.start_history(1000)
    mark = getattr(torch._C, "_cuda_setMemoryMetadata", None)
    if mark is not None:
        mark("vramlens-doctor")
    tensor = torch.empty(1 << 20, dtype=torch.uint8, device=gpu.kind)
    with contextlib.suppress(RuntimeError):
        torch.empty(_TOO_LARGE, dtype=torch.uint8, device=gpu.kind)
    taken = gpu.snapshot()
    gpu.stop_history()
    del tensor
    room = answer_of(lambda: module.mem_get_info(index))
    about = gpu.properties(index)
    return {
        "name": about["name"],
        "capability": answer_of(lambda: list(module.get_device_capability(index))),
        "total_bytes": about["total_bytes"],
        "free_bytes": None if room is None else int(room[0]),
        **_facts_of_events([event for trace in taken.get("device_traces", ()) for event in trace]),
        "state": gpu.state() is not None,
        "observer": bool(called),
        "seconds": round(time.monotonic() - begin, 3),
    }


def _facts_of_events(events: list[dict[str, Any]]) -> dict[str, Any]:
    born = [event for event in events if event.get("action") == "alloc"]
    frames = [frame for event in born for frame in event.get("frames", ())]
    return {
        "events": len(events),
        "python_stacks": any(str(frame.get("filename", "")).endswith(".py") for frame in frames),
        "marks": any(event.get("user_metadata") == "vramlens-doctor" for event in born),
        "pool_ids": any("pool_id" in event for event in born),
        "times": any("time_us" in event for event in born),
    }


def _takes(function: Any, parameter: str) -> bool:
    return bool(answer_of(lambda: parameter in inspect.signature(function).parameters))
