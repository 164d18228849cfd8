"""Everything on this machine that helps or hinders memory debugging: one row a check, and a
verdict.

No check raises, and none makes a GPU context in this process: PyTorch is asked in a child.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from vramlens.capture.doctor import gpu_checks, host_checks
from vramlens.capture.doctor.checks import STATES, CheckOutcome, DoctorCheck, unknown
from vramlens.capture.doctor.gpu_evidence import GpuEvidence
from vramlens.capture.doctor.switches import SWITCHES
from vramlens.capture.doctor.torch_checks import ChildAnswer, ask_torch
from vramlens.capture.memory.driver import driver
from vramlens.capture.process_group import DistributedState, distributed_state
from vramlens.units import counted

Probe = Callable[[], CheckOutcome | None]

_BLOCKING = {
    "torch": "PyTorch cannot be imported",
    "settings": "PyTorch refuses the allocator's settings",
    "driver": "the driver is too old for this PyTorch",
    "gpu": "PyTorch cannot use the GPU",
    "allocator": "PyTorch's own allocator is not in use",
    "snapshot": "this PyTorch cannot record memory history",
    "trial": "a small recording on the GPU failed",
}
"""Without these nothing can be recorded, and how the verdict puts it; in the order in which a
reason is looked for.
"""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The doctor's findings.

    Attributes:
        verdict: the answer in one sentence.
        ready: whether recordings can be made here; None where PyTorch could not be asked.
        checks: the rows, in a fixed order; what does not apply here is left out.
        distributed: this process's place in a job.
    """

    verdict: str
    ready: bool | None
    checks: tuple[DoctorCheck, ...]
    distributed: DistributedState

    def worst_first(self) -> tuple[DoctorCheck, ...]:
        """The rows, problems before notes before the rest."""
        return tuple(sorted(self.checks, key=lambda check: STATES.index(check.state)))

    def to_dict(self) -> dict[str, Any]:
        """All of it with the switches and their present values, ready for JSON."""
        return {
            "verdict": self.verdict,
            "ready": self.ready,
            "checks": [asdict(check) for check in self.checks],
            "switches": [switch.to_dict() for switch in SWITCHES],
            "distributed": self.distributed.to_dict(),
        }


def diagnose(*, gpu: bool = False, further: Sequence[tuple[str, Probe]] = ()) -> Diagnosis:
    """Looks at everything; takes the seconds that importing torch takes. Never raises.

    Args:
        gpu: also make a small recording on the GPU, in a child process with a time limit.
        further: more checks, by name.
    """
    evidence = _look(gpu)
    state = distributed_state()
    checks = [_guarded(name, probe) for name, probe in (*_probes(evidence, state, gpu), *further)]
    rows = tuple(check for check in checks if check is not None)
    verdict, ready = _verdict(evidence, rows)
    return Diagnosis(verdict, ready, rows, state)


def _look(gpu: bool) -> GpuEvidence:
    try:
        answer = ask_torch(gpu=gpu)
    except Exception as error:
        answer = ChildAnswer(failure=f"asking it failed ({_words(error)})")
    try:
        nvml, reason = driver()
        gpus = nvml.gpus() if nvml is not None else ()
    except Exception as error:
        nvml, reason, gpus = None, f"The NVIDIA driver did not answer ({_words(error)}).", ()
    return GpuEvidence(answer, nvml, reason, gpus)


def _probes(evidence: GpuEvidence, state: DistributedState, gpu: bool) -> list[tuple[str, Probe]]:
    of_gpu = [
        ("torch", gpu_checks.torch),
        ("gpu", gpu_checks.gpu),
        ("driver", gpu_checks.driver),
        ("allocator", gpu_checks.allocator),
        ("settings", gpu_checks.settings),
        ("snapshot", gpu_checks.snapshot),
        *([("trial", gpu_checks.trial)] if gpu else []),
        ("profiler", gpu_checks.profiler),
        ("nvml", gpu_checks.nvml),
        ("nccl", gpu_checks.nccl),
        ("visible devices", gpu_checks.visible_devices),
    ]
    return [
        ("python", host_checks.python),
        *((name, partial(check, evidence)) for name, check in of_gpu),
        ("switches", gpu_checks.switches),
        ("psutil", host_checks.psutil),
        ("host memory", host_checks.memory),
        ("shared memory", host_checks.shared_memory),
        ("locked memory", partial(host_checks.locked_memory, state)),
        ("disk", host_checks.disk),
        ("process group", partial(host_checks.process_group, state)),
    ]


def _guarded(name: str, probe: Probe) -> DoctorCheck | None:
    try:
        outcome = probe()
    except Exception as error:
        outcome = unknown(f"This check failed ({_words(error)}).")
    return None if outcome is None else DoctorCheck(name, *outcome)


def _verdict(evidence: GpuEvidence, checks: Sequence[DoctorCheck]) -> tuple[str, bool | None]:
    by_name = {check.name: check for check in checks}
    if evidence.answer.missing:
        return "PyTorch is not installed here: recordings can be read but not made.", False
    for name, words in _BLOCKING.items():
        if name in by_name and by_name[name].state == "problem":
            return f"Not ready to record: {words}.", False
    if evidence.answer.facts is None:
        return "It is unknown whether recordings can be made here: PyTorch did not respond.", None
    if not evidence.visible:
        return "There is no GPU here: recordings can be read but not made.", False
    about = ", ".join(filter(None, (evidence.names, f"torch {evidence.fact('version')}")))
    return f"Ready to record on {counted(evidence.visible, 'GPU')} ({about}).", True


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(".: ")
