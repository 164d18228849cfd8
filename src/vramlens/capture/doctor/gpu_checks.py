"""The doctor's look at PyTorch and the GPU, from what a child process, the driver and the
environment say.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vramlens.capture.alloc_conf import read_settings
from vramlens.capture.doctor.checks import Check
from vramlens.capture.doctor.switches import SWITCHES, switch
from vramlens.capture.doctor.torch_checks import DIED, Answer
from vramlens.capture.memory.driver import Driver, Gpu, own_pids
from vramlens.units import counted

_OLDEST_TORCH = (2, 4)
_NCCL_COUNTS = (2, 29, 7)
"""The first NCCL with ncclCommMemStats; PyTorch asks it from 2.12 on (PR 176300)."""
_UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
_HARMLESS = {"CUDA_MODULE_LOADING": ("LAZY", "DEFAULT"), "CUDA_LAUNCH_BLOCKING": ("0", "")}


@dataclass(frozen=True, slots=True)
class Seen:
    """What the rows are made from.

    Attributes:
        answer: what PyTorch said.
        nvml: the driver; None where it does not answer, for ``reason``.
        gpus: the GPUs that the driver shows to this process, whatever PyTorch can do with them.
    """

    answer: Answer
    nvml: Driver | None
    reason: str
    gpus: tuple[Gpu, ...]

    def fact(self, name: str) -> Any:
        """One of PyTorch's facts; None where there is none."""
        return None if self.answer.facts is None else self.answer.facts.get(name)

    @property
    def visible(self) -> int:
        """The GPUs that PyTorch can use."""
        return int(self.fact("visible") or 0)

    @property
    def is_nvidia(self) -> bool:
        """Whether PyTorch is built for NVIDIA's GPUs."""
        return self.fact("kind") == "cuda" and not self.fact("hip")

    @property
    def release(self) -> tuple[int, int] | None:
        """PyTorch's major and minor version."""
        found = list(self.fact("release") or ())
        return (int(found[0]), int(found[1])) if len(found) >= 2 else None

    @property
    def names(self) -> str:
        """The GPUs' products, each once."""
        trial = self.answer.trial or {}
        found = [gpu.name for gpu in self.gpus if gpu.name] or [
            name for name in [trial.get("name")] if name
        ]
        return ", ".join(dict.fromkeys(found))


def torch(seen: Seen) -> Check:
    """PyTorch: whether it is there, its version and its build."""
    if seen.answer.missing:
        do = "To record, run the doctor with the Python that trains: python -m vramlens doctor."
        return Check("torch", "problem", "PyTorch is not installed in this Python.", do)
    if seen.answer.facts is None:
        return Check(
            "torch", "problem", f"PyTorch cannot be asked: {_sentence(seen.answer.failure)}"
        )
    text = f"PyTorch {seen.fact('version')}, built for {_build(seen)}."
    if seen.release is not None and seen.release < _OLDEST_TORCH:
        return Check(
            "torch",
            "note",
            text,
            "vramlens is made for PyTorch 2.4 and newer: some figures will be missing.",
        )
    return Check("torch", "ok", text)


def gpu(seen: Seen) -> Check:
    """The GPUs that PyTorch can use, or why there are none."""
    if seen.answer.facts is None:
        there = (
            f"The driver shows {counted(len(seen.gpus), 'GPU')} ({seen.names})."
            if seen.gpus
            else _no_gpu(seen)
        )
        return Check("gpu", "unknown", there)
    if seen.visible:
        return _usable(seen)
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and seen.fact("kind") == "cuda" and not _selects(hidden):
        return Check(
            "gpu",
            "problem",
            f"CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU.",
            "unset CUDA_VISIBLE_DEVICES",
        )
    there_are = _driver_count() if hidden is not None and seen.fact("kind") == "cuda" else 0
    if not seen.gpus and there_are:
        text = f"CUDA_VISIBLE_DEVICES={hidden!r} names no GPU of the {there_are} here."
        return Check(
            "gpu", "problem", text, "Name those that nvidia-smi -L lists, from 0 on, or unset it."
        )
    if not seen.gpus:
        return Check("gpu", "note", _no_gpu(seen))
    there = f"{counted(len(seen.gpus), 'GPU')} ({seen.names})"
    if seen.fact("kind") is None:
        do = "Install a CUDA build: https://pytorch.org/get-started/locally"
        return Check("gpu", "problem", f"{there} here, but this PyTorch is built for the CPU.", do)
    why = next(iter(seen.fact("warnings") or ()), "it does not say why")
    do = "Compare the rows torch and driver; in a container, was it started with --gpus?"
    return Check(
        "gpu", "problem", f"{there} here, but PyTorch cannot use them: {_sentence(why)}", do
    )


def _usable(seen: Seen) -> Check:
    text = f"{counted(seen.visible, 'GPU')}{f' ({seen.names})' if seen.names else ''}."
    archs = seen.fact("archs") or []
    for one in seen.gpus if archs and seen.is_nvidia else ():
        capability = _capability(one)
        if capability is not None and not _has_kernels(archs, capability):
            sm = "sm_{}{}".format(*capability)
            do = f"Install a PyTorch that is built for {sm}: torch.cuda.get_arch_list() names it."
            return Check(
                "gpu",
                "problem",
                f"{text[:-1]}; this PyTorch holds no kernels for {one.name} ({sm}).",
                do,
            )
    return Check("gpu", "ok", text)


def driver(seen: Seen) -> Check | None:
    """The driver, and whether it is new enough for PyTorch's CUDA."""
    if seen.nvml is None:
        return None
    version, cuda = seen.nvml.version() or "unknown", _driver_cuda()
    text = f"Driver {version}{'' if cuda is None else ' (CUDA {}.{})'.format(*cuda)}"
    built = re.match(r"(\d+)\.(\d+)", seen.fact("cuda") or "") if seen.is_nvidia else None
    if built is None or cuda is None:
        return Check("driver", "ok", f"{text}.")
    # CUDA's minor version compatibility: any driver of the same major version runs it (CUDA
    # compatibility guide).
    if cuda[0] >= int(built[1]):
        return Check("driver", "ok", f"{text} fits this PyTorch.")
    if seen.visible:
        return Check(
            "driver", "ok", f"{text}; CUDA {built[0]} runs by a forward compatibility package."
        )
    do = f"Update the driver, or install a PyTorch built for CUDA {cuda[0]}."
    return Check("driver", "problem", f"{text}: too old for this PyTorch's CUDA {built[0]}.", do)


def allocator(seen: Seen) -> Check | None:
    """Which allocator PyTorch uses: only its own keeps a history."""
    if seen.answer.facts is None or seen.fact("kind") is None:
        return None
    if _UNCACHED in os.environ:
        text = f"{_UNCACHED} is set, whatever its value: nothing is cached, and recordings mean nothing."
        return Check("allocator", "problem", text, f"unset {_UNCACHED}")
    backend = seen.fact("backend")
    if backend is None:
        return Check(
            "allocator",
            "ok" if seen.fact("kind") == "xpu" else "unknown",
            "PyTorch's own, as it seems.",
        )
    if backend != "native":
        text = f"{backend} keeps no history: nothing can be recorded."
        do = "Take backend:… out of the allocator's settings, and any CUDAPluggableAllocator out of the program."
        return Check("allocator", "problem", text, do)
    return Check("allocator", "ok", "PyTorch's own (native): can be recorded.")


def settings(seen: Seen) -> Check:
    """The allocator's settings in the environment."""
    found = read_settings(os.environ, seen.release, is_rocm=bool(seen.fact("hip")))
    given = f"{found.variable}={found.text}" if found.variable else "No allocator settings"
    if found.faults:
        kills = " PyTorch does not even import with it." if seen.answer.settings_failed else ""
        do = f"Correct {found.variable}: PyTorch refuses it at import or at the first use of a GPU."
        return Check("settings", "problem", f"{given}: {' '.join(found.faults)}{kills}", do)
    if seen.answer.settings_failed:
        text = f"{given}: PyTorch does not import with it ({_sentence(seen.answer.failure)[:-1]})."
        return Check("settings", "problem", text, f"unset {found.variable or 'PYTORCH_ALLOC_CONF'}")
    if found.notes:
        return Check(
            "settings",
            "note",
            f"{given}. {' '.join(found.notes)}",
            "Set one variable, with what you mean.",
        )
    return Check("settings", "ok", f"{given}.")


def snapshot(seen: Seen) -> Check | None:
    """What recordings of this PyTorch version can hold."""
    if seen.answer.facts is None or seen.fact("kind") is None:
        return None
    if not seen.fact("history"):
        return Check(
            "snapshot", "problem", "This PyTorch cannot record events.", "Use PyTorch 2.4 or newer."
        )
    parts = {
        "module marks (2.10)": seen.fact("marks"),
        "step marks (2.5)": seen.fact("annotations"),
        "cheap state (2.10)": seen.fact("cheap_state"),
        "an out-of-memory hook": seen.fact("observer"),
    }
    missing = [name for name, there in parts.items() if not there]
    extra = [
        name
        for name, key in (("skip_actions", "skip_actions"), ("pool ids", "pool_ids"))
        if seen.fact(key)
    ]
    if missing:
        text = f"Events can be recorded; this PyTorch lacks {', '.join(missing)}."
        return Check(
            "snapshot", "note", text, "A newer PyTorch tells more; what is there is exact."
        )
    more = f", {', '.join(extra)}" if extra else ""
    return Check("snapshot", "ok", f"Events, module and step marks, failures{more}.")


def trial(seen: Seen) -> Check | None:
    """What ``--gpu`` gave: a small recording on the GPU itself."""
    found = seen.answer.trial
    if found is None:
        failure = seen.answer.failure
        if not failure or seen.answer.facts is None or seen.answer.settings_failed:
            return None
        died = failure.startswith(DIED)
        do = (
            "Run nvidia-smi: if that hangs or fails too, it is the driver or the GPU."
            if died
            else ""
        )
        return Check(
            "trial", "problem", f"A small recording on the GPU failed: {_sentence(failure)}", do
        )
    wanted = {"stacks": "python_stacks", "times": "times"}
    wanted |= {"marks": "marks"} if seen.fact("marks") else {}
    wanted |= {"failures": "observer"} if seen.fact("observer") else {}
    broken = [name for name, key in wanted.items() if not found.get(key)]
    text = f"{counted(int(found.get('events') or 0), 'event')} recorded in {float(found.get('seconds') or 0):.1f} s"
    if not found.get("events"):
        do = "Record in the program itself: vramlens run says what it recorded."
        return Check("trial", "problem", f"{text}: nothing is recorded here.", do)
    if broken:
        return Check("trial", "note", f"{text}, but without {', '.join(broken)}.")
    return Check("trial", "ok", f"{text}, with {', '.join(wanted)}.")


def profiler(seen: Seen) -> Check | None:
    """Whether PyTorch's profiler can see GPU kernels."""
    if seen.answer.facts is None:
        return None
    if not seen.fact("kineto"):
        return Check(
            "profiler",
            "note",
            "This PyTorch has no Kineto: 'vramlens run --profile' gives nothing.",
        )
    if not seen.visible:
        return Check("profiler", "ok", "Kineto is there; without a GPU it sees the CPU only.")
    if seen.is_nvidia and not seen.fact("gpu_profiler"):
        return Check(
            "profiler", "note", "Kineto is there, but not CUPTI: traces hold no GPU kernels."
        )
    return Check("profiler", "ok", "Kineto sees GPU kernels.")


def nvml(seen: Seen) -> Check | None:
    """Whether the driver tells who holds the GPU's memory."""
    if seen.fact("kind") == "xpu" or seen.fact("hip"):
        return None
    if seen.nvml is None:
        more = " Memory of other processes cannot be told apart." if seen.visible else ""
        return Check("nvml", "note", f"{seen.reason}{more}")
    _, at_home = own_pids()
    figures = [found for found in map(seen.nvml.memory, seen.gpus) if found is not None]
    if seen.gpus and not figures:
        return Check(
            "nvml", "note", "The driver gives no memory figures (permission, or an old driver)."
        )
    if any(found.processes is None for found in figures):
        return Check(
            "nvml",
            "note",
            "The driver gives the memory, but does not list the processes that hold it.",
        )
    if not at_home:
        text = "The driver counts processes as the host does, this container differently."
        do = "Which one is yours is inferred; docker run --pid=host makes it certain."
        return Check("nvml", "note", text, do)
    return Check("nvml", "ok", "Memory and processes of every GPU can be read.")


def nccl(seen: Seen) -> Check | None:
    """NCCL's version, and whether its memory can be read."""
    if not seen.is_nvidia:
        return None
    found = seen.fact("nccl")
    if not found:
        return Check("nccl", "note", "This PyTorch has no NCCL: jobs of several GPUs use gloo.")
    text = f"NCCL {'.'.join(map(str, found))}"
    if tuple(found) < _NCCL_COUNTS:
        return Check("nccl", "ok", f"{text}; its memory cannot be read (from 2.29.7 on).")
    if not seen.fact("nccl_memory"):
        return Check("nccl", "ok", f"{text}; this PyTorch cannot read its memory (2.12 can).")
    return Check("nccl", "ok", f"{text}; its memory can be read.")


def visible_devices(seen: Seen) -> Check | None:
    """CUDA_VISIBLE_DEVICES, where it is set."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return None
    text = f"CUDA_VISIBLE_DEVICES={given!r}"
    if not _selects(given):
        if seen.fact("kind") == "cuda" and not seen.visible:
            return None  # the row gpu says so
        return Check(
            "visible devices", "note", f"{text} hides every GPU.", "unset CUDA_VISIBLE_DEVICES"
        )
    return Check("visible devices", "ok", f"{text}: cuda:0 is the first of these.")


def switches(seen: Seen) -> Check:
    """Debug switches that are on and slow the program down, or change its memory."""
    found = []
    for one in SWITCHES:
        given = None if one.weight == "cheap" else one.present()
        if given is not None and given[1] not in _HARMLESS.get(one.name, ()):
            found.append(given)
    if not found:
        return Check("switches", "ok", "No switch slows the program or changes its memory.")
    set_so = ", ".join(f"{name}={value}" for name, value in found)
    why = switch(found[0][0]).cost
    return Check(
        "switches",
        "note",
        f"{set_so}: {why}.",
        "unset it unless it is meant (vramlens doctor --switches)",
    )


def _build(seen: Seen) -> str:
    for name, key in (("ROCm", "hip"), ("CUDA", "cuda"), ("XPU", "xpu")):
        if seen.fact(key):
            return f"{name} {seen.fact(key)}"
    return "the CPU"


def _no_gpu(seen: Seen) -> str:
    return (
        "No GPU to be seen."
        if seen.nvml is not None or seen.fact("kind")
        else "No GPU that PyTorch can use."
    )


def _selects(given: str) -> bool:
    """Whether CUDA_VISIBLE_DEVICES leaves any GPU: a first entry that is no device ends the
    list.
    """
    return re.match(r"\s*(\+?[0-9]+|GPU-|MIG-)", given) is not None


def _capability(one: Gpu) -> tuple[int, int] | None:
    try:
        found = importlib.import_module("pynvml").nvmlDeviceGetCudaComputeCapability(one.handle)
        return int(found[0]), int(found[1])
    except Exception:
        return None


def _has_kernels(archs: Sequence[str], capability: tuple[int, int]) -> bool:
    """Machine code runs on later minor versions of its major one; PTX (compute_) is compiled for
    any later one.
    """
    for arch in archs:
        named = re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", arch)
        if named is None:
            return True
        built = (int(named[2]), int(named[3]))
        if built <= capability and (named[1] == "compute" or built[0] == capability[0]):
            return True
    return False


def _driver_cuda() -> tuple[int, int] | None:
    try:
        number = int(importlib.import_module("pynvml").nvmlSystemGetCudaDriverVersion_v2())
    except Exception:
        return None
    return number // 1000, number % 1000 // 10


def _driver_count() -> int:
    """The machine's GPUs, visible to this process or not."""
    try:
        return int(importlib.import_module("pynvml").nvmlDeviceGetCount())
    except Exception:
        return 0


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text if text.endswith(".") else f"{text}."
