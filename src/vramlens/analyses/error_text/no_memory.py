"""Errors that look like out of memory and are none, and those that are and print no figures."""

from __future__ import annotations

from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.read.oom.oom_text import OomMessage

_HEADLINES = {
    "triton": "This is not a memory shortage: a tile of a Triton kernel exceeds the on-chip "
    "shared memory",
    "fork": "This is not a memory shortage: CUDA was already in use when this process was forked",
}
NOT_MEMORY = tuple(_HEADLINES)
_CURES = {
    "triton": (
        "On-chip shared memory is separate from GPU memory",
        "use smaller block sizes or fewer num_stages for that kernel; freeing GPU memory will "
        "not help",
    ),
    "fork": (
        "A forked process inherits a CUDA context that it cannot use, and PyTorch refuses to "
        "create another",
        "start workers with spawn: DataLoader(…, multiprocessing_context='spawn') or "
        "multiprocessing.set_start_method('spawn') (vLLM: VLLM_WORKER_MULTIPROC_METHOD=spawn); or "
        "do not use CUDA before the fork, and move tensors to the GPU in the parent",
    ),
}
COMFYUI_FIX = (
    "PyTorch's cudaMallocAsync backend (ComfyUI uses it) prints neither the size nor the free "
    "memory",
    None,
    None,
    (),
    "lower the resolution, the frames or the batch, or start ComfyUI with --lowvram (or --novram);"
    " with --disable-cuda-malloc the next error prints its numbers",
)


def is_brief(message: OomMessage) -> bool:
    """Whether all that was printed is that an allocation failed."""
    return message.text.startswith("Allocation on device") and message.tried_bytes is None


def not_memory_headline(message: OomMessage) -> str:
    """The sentence that no memory was missing."""
    return _HEADLINES[message.kind]


def not_memory_findings(message: OomMessage) -> tuple[Finding, ...]:
    """What to change where no memory was missing."""
    if message.kind not in _CURES:
        return ()
    title, fix = _CURES[message.kind]
    return (Finding("not_memory", Verdict.NOT_A_PROBLEM, title, fix=fix),)
