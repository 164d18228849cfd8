"""What the doctor knows of PyTorch and the GPU: from a child process, the driver, the environment."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vramlens.capture.doctor.torch_checks import ChildAnswer
from vramlens.capture.memory.driver import Driver, Gpu


@dataclass(frozen=True, slots=True)
class GpuEvidence:
    """The evidence that the rows are made from.

    Attributes:
        answer: what PyTorch said.
        nvml: the driver; None where it does not answer, for ``reason``.
        gpus: the GPUs that the driver shows to this process, whatever PyTorch can do with them.
    """

    answer: ChildAnswer
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
        """True where PyTorch is built for NVIDIA's GPUs."""
        return self.fact("kind") == "cuda" and not self.fact("hip")

    @property
    def release(self) -> tuple[int, int] | None:
        """PyTorch's major and minor version."""
        release = list(self.fact("release") or ())
        return (int(release[0]), int(release[1])) if len(release) >= 2 else None

    @property
    def names(self) -> str:
        """The GPUs' products, each once."""
        trial = self.answer.trial or {}
        names = [gpu.name for gpu in self.gpus if gpu.name] or [
            name for name in [trial.get("name")] if name
        ]
        return ", ".join(dict.fromkeys(names))


def selects_gpu(visible: str) -> bool:
    """True where CUDA_VISIBLE_DEVICES leaves any GPU: a first entry that is not a device ends the
    list.
    """
    return re.match(r"\s*(\+?[0-9]+|GPU-|MIG-)", visible) is not None


def has_kernels(archs: Sequence[str], capability: tuple[int, int]) -> bool:
    """Whether a build for these architectures runs on a GPU: machine code runs on later minor
    versions of its major one, PTX (compute_) is compiled for any later one.
    """
    for arch in archs:
        named = re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", arch)
        if named is None:
            return True
        built = (int(named[2]), int(named[3]))
        if built <= capability and (named[1] == "compute" or built[0] == capability[0]):
            return True
    return False


def capability_of(device: Gpu) -> tuple[int, int] | None:
    """The compute capability; None where the driver does not say."""
    capability = _ask_driver("nvmlDeviceGetCudaComputeCapability", device.handle)
    return None if capability is None else (int(capability[0]), int(capability[1]))


def driver_cuda() -> tuple[int, int] | None:
    """The newest CUDA that the driver runs; None where it does not say."""
    number = _ask_driver("nvmlSystemGetCudaDriverVersion_v2")
    return None if number is None else (int(number) // 1000, int(number) % 1000 // 10)


def driver_count() -> int:
    """The machine's GPUs, visible to this process or not."""
    return int(_ask_driver("nvmlDeviceGetCount") or 0)


def _ask_driver(question: str, *arguments: Any) -> Any:
    """The answer of a function of pynvml; None where there is none."""
    try:
        return getattr(importlib.import_module("pynvml"), question)(*arguments)
    except Exception:
        return None
