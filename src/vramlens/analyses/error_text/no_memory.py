"""Errors that look like out of memory and are none, and those that are and print no figures."""

from __future__ import annotations

from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.read.oom_text import OomMessage

_HEADLINES = {
    "triton": "No memory was missing: one tile of a Triton kernel is larger than the chip's"
    " on-chip memory",
    "fork": "No memory was missing: CUDA was already in use when this process was forked",
}
NOT_MEMORY = tuple(_HEADLINES)
_CURES = {
    "triton": (
        "On-chip shared memory is not the GPU's main memory",
        "use smaller block sizes or fewer num_stages for that kernel; freeing GPU memory changes"
        " nothing",
    ),
    "fork": (
        "A forked process inherits a CUDA context that it cannot use: PyTorch refuses to start"
        " another",
        "start workers by spawn: DataLoader(…, multiprocessing_context='spawn') or"
        " multiprocessing.set_start_method('spawn') (vLLM: VLLM_WORKER_MULTIPROC_METHOD=spawn); or"
        " call nothing of CUDA before the fork, and move tensors to the GPU in the parent",
    ),
}
COMFYUI_FIX = (
    "PyTorch's cudaMallocAsync backend, as ComfyUI uses it, says neither the size nor what was free",
    None,
    None,
    (),
    "lower the resolution, the frames or the batch, or start ComfyUI with --lowvram (or --novram);"
    " with --disable-cuda-malloc the next error prints its figures",
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
