"""The doctor's look at PyTorch and the GPU, from what a child process, the driver and the
environment say.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from vramlens.capture.alloc_conf import read_settings
from vramlens.capture.doctor.checks import CheckOutcome, note, ok, problem, unknown
from vramlens.capture.doctor.gpu_evidence import (
    GpuEvidence,
    capability_of,
    driver_count,
    driver_cuda,
    has_kernels,
    selects_gpu,
)
from vramlens.capture.doctor.switches import SWITCHES, switch
from vramlens.capture.doctor.torch_checks import DIED
from vramlens.capture.memory.driver import Driver, Gpu, own_pids
from vramlens.units import counted

_OLDEST_TORCH = (2, 4)
_NCCL_COUNTS = (2, 29, 7)
"""The first NCCL with ncclCommMemStats; PyTorch asks it from 2.12 on (PR 176300)."""
_UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
_HARMLESS = {"CUDA_MODULE_LOADING": ("LAZY", "DEFAULT"), "CUDA_LAUNCH_BLOCKING": ("0", "")}


def torch(evidence: GpuEvidence) -> CheckOutcome:
    """PyTorch: whether it is there, its version and its build."""
    if evidence.answer.missing:
        do = "To record, run the doctor with your training Python: python -m vramlens doctor."
        return problem("PyTorch is not installed in this Python.", do)
    if evidence.answer.facts is None:
        return problem(f"PyTorch did not respond: {_sentence(evidence.answer.failure)}")
    text = f"PyTorch {evidence.fact('version')}, built for {_build(evidence)}."
    if evidence.release is not None and evidence.release < _OLDEST_TORCH:
        return note(
            text,
            "vramlens needs PyTorch 2.4 or newer for all features; some numbers will be missing.",
        )
    return ok(text)


def gpu(evidence: GpuEvidence) -> CheckOutcome:
    """The GPUs that PyTorch can use, or why there are none."""
    shown_gpus = f"{counted(len(evidence.gpus), 'GPU')} ({evidence.names})"
    if evidence.answer.facts is None:
        text = f"The driver shows {shown_gpus}." if evidence.gpus else _no_gpu(evidence)
        return unknown(text)
    if evidence.visible:
        return _usable(evidence)
    hidden = _hidden(evidence)
    if hidden is not None:
        return hidden
    if not evidence.gpus:
        return note(_no_gpu(evidence))
    if evidence.fact("kind") is None:
        text = f"{shown_gpus} here, but this PyTorch is built for the CPU."
        do = "Install a CUDA build: https://pytorch.org/get-started/locally"
        return problem(text, do)
    why = next(iter(evidence.fact("warnings") or ()), "no reason given")
    text = f"{shown_gpus} here, but PyTorch cannot use them: {_sentence(why)}"
    do = "Compare the rows torch and driver; in a container, was it started with --gpus?"
    return problem(text, do)


def _hidden(evidence: GpuEvidence) -> CheckOutcome | None:
    """The row where CUDA_VISIBLE_DEVICES hides every GPU; else None."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or evidence.fact("kind") != "cuda":
        return None
    if not selects_gpu(visible):
        text = f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU."
        return problem(text, "unset CUDA_VISIBLE_DEVICES")
    count = driver_count()
    if evidence.gpus or not count:
        return None
    text = f"CUDA_VISIBLE_DEVICES={visible!r} selects none of the {count} here."
    do = "Use numbers that nvidia-smi -L lists, starting at 0, or unset it."
    return problem(text, do)


def _usable(evidence: GpuEvidence) -> CheckOutcome:
    text = f"{counted(evidence.visible, 'GPU')}{f' ({evidence.names})' if evidence.names else ''}."
    archs = evidence.fact("archs") or []
    for device in evidence.gpus if archs and evidence.is_nvidia else ():
        capability = capability_of(device)
        if capability is not None and not has_kernels(archs, capability):
            sm = "sm_{}{}".format(*capability)
            do = f"Install a PyTorch that is built for {sm}: torch.cuda.get_arch_list() names it."
            return problem(
                f"{text[:-1]}; this PyTorch has no kernels for {device.name} ({sm}).", do
            )
    return ok(text)


def driver(evidence: GpuEvidence) -> CheckOutcome | None:
    """The driver, and whether it is new enough for PyTorch's CUDA."""
    if evidence.nvml is None:
        return None
    version, cuda = evidence.nvml.version() or "unknown", driver_cuda()
    text = f"Driver {version}{'' if cuda is None else ' (CUDA {}.{})'.format(*cuda)}"
    built = re.match(r"(\d+)\.(\d+)", evidence.fact("cuda") or "") if evidence.is_nvidia else None
    if built is None or cuda is None:
        return ok(f"{text}.")
    # CUDA's minor version compatibility: any driver of the same major version runs it (CUDA
    # compatibility guide).
    if cuda[0] >= int(built[1]):
        return ok(f"{text} works with this PyTorch.")
    if evidence.visible:
        return ok(f"{text}; CUDA {built[0]} runs by a forward compatibility package.")
    do = f"Update the driver, or install a PyTorch built for CUDA {cuda[0]}."
    return problem(f"{text}: too old for this PyTorch's CUDA {built[0]}.", do)


def allocator(evidence: GpuEvidence) -> CheckOutcome | None:
    """The allocator that PyTorch uses: only its own keeps a history."""
    if evidence.answer.facts is None or evidence.fact("kind") is None:
        return None
    if _UNCACHED in os.environ:
        text = (
            f"{_UNCACHED} is set (any value counts): caching is off, so recordings are meaningless."
        )
        return problem(text, f"unset {_UNCACHED}")
    backend = evidence.fact("backend")
    if backend is None:
        state = ok if evidence.fact("kind") == "xpu" else unknown
        return state("apparently PyTorch's native allocator.")
    if backend != "native":
        text = f"{backend} has no memory history, so nothing can be recorded."
        do = (
            "Take backend:… out of the allocator settings, and remove any "
            "CUDAPluggableAllocator from the program."
        )
        return problem(text, do)
    return ok("PyTorch's native allocator, which can be recorded.")


def settings(evidence: GpuEvidence) -> CheckOutcome:
    """The allocator's settings in the environment."""
    conf = read_settings(os.environ, evidence.release, is_rocm=bool(evidence.fact("hip")))
    shown_conf = f"{conf.variable}={conf.text}" if conf.variable else "No allocator settings"
    if conf.faults:
        kills = " PyTorch cannot be imported with it." if evidence.answer.settings_failed else ""
        do = f"Correct {conf.variable}: PyTorch refuses it at import or at the first use of a GPU."
        return problem(f"{shown_conf}: {' '.join(conf.faults)}{kills}", do)
    if evidence.answer.settings_failed:
        text = (
            f"{shown_conf}: PyTorch does not import with it"
            f" ({_sentence(evidence.answer.failure)[:-1]})."
        )
        return problem(text, f"unset {conf.variable or 'PYTORCH_ALLOC_CONF'}")
    if conf.notes:
        return note(f"{shown_conf}. {' '.join(conf.notes)}", "Set only one of them.")
    return ok(f"{shown_conf}.")


def snapshot(evidence: GpuEvidence) -> CheckOutcome | None:
    """The contents that recordings of this PyTorch version can have."""
    if evidence.answer.facts is None or evidence.fact("kind") is None:
        return None
    if not evidence.fact("history"):
        return problem("This PyTorch cannot record events.", "Use PyTorch 2.4 or newer.")
    parts = {
        "module marks (2.10)": evidence.fact("marks"),
        "step marks (2.5)": evidence.fact("annotations"),
        "cheap state (2.10)": evidence.fact("cheap_state"),
        "an out-of-memory hook": evidence.fact("observer"),
    }
    missing = [name for name, is_supported in parts.items() if not is_supported]
    extra = [
        name
        for name, key in (("skip_actions", "skip_actions"), ("pool ids", "pool_ids"))
        if evidence.fact(key)
    ]
    if missing:
        text = f"Events can be recorded; this PyTorch lacks {', '.join(missing)}."
        return note(text, "A newer PyTorch records more; what is recorded is exact.")
    more = f", {', '.join(extra)}" if extra else ""
    return ok(f"Events, module and step marks, failures{more}.")


def trial(evidence: GpuEvidence) -> CheckOutcome | None:
    """The outcome of ``--gpu``: a small recording on the GPU itself."""
    recording = evidence.answer.trial
    if recording is None:
        return _failed_trial(evidence)
    expected_parts = {"stacks": "python_stacks", "times": "times"}
    if evidence.fact("marks"):
        expected_parts["marks"] = "marks"
    if evidence.fact("observer"):
        expected_parts["failures"] = "observer"
    broken = [name for name, key in expected_parts.items() if not recording.get(key)]
    events, seconds = int(recording.get("events") or 0), float(recording.get("seconds") or 0)
    text = f"{counted(events, 'event')} recorded in {seconds:.1f} s"
    if not events:
        do = "Record the program itself: vramlens run reports what it recorded."
        return problem(f"{text}: nothing was recorded.", do)
    if broken:
        return note(f"{text}, but without {', '.join(broken)}.")
    return ok(f"{text}, with {', '.join(expected_parts)}.")


def _failed_trial(evidence: GpuEvidence) -> CheckOutcome | None:
    failure = evidence.answer.failure
    if not failure or evidence.answer.facts is None or evidence.answer.settings_failed:
        return None
    do = ""
    if failure.startswith(DIED):
        do = "Run nvidia-smi: if it also hangs or fails, the driver or the GPU is the cause."
    text = f"A small recording on the GPU failed: {_sentence(failure)}"
    return problem(text, do)


def profiler(evidence: GpuEvidence) -> CheckOutcome | None:
    """PyTorch's profiler, and whether it can see GPU kernels."""
    if evidence.answer.facts is None:
        return None
    if not evidence.fact("kineto"):
        return note("This PyTorch has no Kineto: 'vramlens run --profile' gives nothing.")
    if not evidence.visible:
        return ok("Kineto is available; without a GPU it sees only the CPU.")
    if evidence.is_nvidia and not evidence.fact("gpu_profiler"):
        return note("Kineto is available without CUPTI, so traces contain no GPU kernels.")
    return ok("Kineto sees GPU kernels.")


def nvml(evidence: GpuEvidence) -> CheckOutcome | None:
    """NVML, and whether the driver says who holds the GPU's memory."""
    if evidence.fact("kind") == "xpu" or evidence.fact("hip"):
        return None
    if evidence.nvml is None:
        more = " Memory of other processes cannot be distinguished." if evidence.visible else ""
        return note(f"{evidence.reason}{more}")
    gap = _missing_figures(evidence.nvml, evidence.gpus)
    if gap:
        return note(gap)
    _, sees_host_pids = own_pids()
    if not sees_host_pids:
        text = "The driver uses the host's process numbers, and this container uses different ones."
        do = "Your process is inferred; docker run --pid=host makes it certain."
        return note(text, do)
    return ok("Memory and processes of every GPU can be read.")


def _missing_figures(driver: Driver, gpus: Sequence[Gpu]) -> str:
    figures = [memory for memory in map(driver.memory, gpus) if memory is not None]
    if gpus and not figures:
        return "The driver reports no memory numbers (permission, or an old driver)."
    if any(memory.processes is None for memory in figures):
        return "The driver reports the memory but not which processes use it."
    return ""


def nccl(evidence: GpuEvidence) -> CheckOutcome | None:
    """NCCL's version, and whether its memory can be read."""
    if not evidence.is_nvidia:
        return None
    version = evidence.fact("nccl")
    if not version:
        return note("This PyTorch has no NCCL: jobs of several GPUs use gloo.")
    text = f"NCCL {'.'.join(map(str, version))}"
    if tuple(version) < _NCCL_COUNTS:
        return ok(f"{text}; its memory cannot be read (from 2.29.7 on).")
    if not evidence.fact("nccl_memory"):
        return ok(f"{text}; this PyTorch cannot read its memory (2.12 can).")
    return ok(f"{text}; its memory can be read.")


def visible_devices(evidence: GpuEvidence) -> CheckOutcome | None:
    """CUDA_VISIBLE_DEVICES, where it is set."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return None
    text = f"CUDA_VISIBLE_DEVICES={visible!r}"
    if not selects_gpu(visible):
        if evidence.fact("kind") == "cuda" and not evidence.visible:
            return None  # the row gpu says so
        return note(f"{text} hides every GPU.", "unset CUDA_VISIBLE_DEVICES")
    return ok(f"{text}: cuda:0 is the first of these.")


def switches() -> CheckOutcome:
    """Debug switches that are on and slow the program down, or change its memory."""
    active = []
    for candidate in SWITCHES:
        setting = None if candidate.weight == "cheap" else candidate.present()
        if setting is not None and setting[1] not in _HARMLESS.get(candidate.name, ()):
            active.append(setting)
    if not active:
        return ok("No debug switch that slows the program or changes its memory is set.")
    set_so = ", ".join(f"{name}={text}" for name, text in active)
    why = switch(active[0][0]).cost
    return note(f"{set_so}: {why}.", "unset it unless you need it (vramlens doctor --switches)")


def _build(evidence: GpuEvidence) -> str:
    for name, key in (("ROCm", "hip"), ("CUDA", "cuda"), ("XPU", "xpu")):
        if evidence.fact(key):
            return f"{name} {evidence.fact(key)}"
    return "the CPU"


def _no_gpu(evidence: GpuEvidence) -> str:
    return (
        "No GPU found."
        if evidence.nvml is not None or evidence.fact("kind")
        else "No GPU that PyTorch can use."
    )


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text if text.endswith(".") else f"{text}."
