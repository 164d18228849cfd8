"""Who else asks for GPU memory than PyTorch's cache: their names, and how to make room for each."""

from __future__ import annotations

import re

from vramlens.analyses.error_text.no_memory import COMFYUI_FIX, NOT_MEMORY, is_brief
from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.read.oom.oom_text import OomMessage

LIBRARIES = {
    "nccl": "NCCL",
    "cublas": "cuBLAS",
    "cudnn": "cuDNN",
    "cufft": "cuFFT",
    "cusolver": "cuSOLVER",
}
LIBRARIES |= {
    "cusparse": "cuSPARSE",
    "jax": "JAX",
    "tensorflow": "TensorFlow",
    "vllm": "vLLM",
    "sglang": "SGLang",
}
LIBRARIES |= {"ggml": "llama.cpp", "onnx": "ONNX Runtime", "cupy": "CuPy"}
FOREIGN = ("jax", "tensorflow", "ggml", "onnx", "cupy")  # their memory is never PyTorch's
ROOM = (
    "make room for it: torch.cuda.empty_cache() just before it returns PyTorch's cache to the GPU,"
    " or torch.cuda.set_per_process_memory_fraction(0.9) at the start limits that cache"
)
# By kind: the finding's id, its title, and the fix.
OUTSIDE_FIXES = {
    "driver": (
        "driver_memory",
        "The request came from outside PyTorch's cache: a CUDA context, a library, a graph or "
        "pinned host memory",
        f"{ROOM}; if this is the first CUDA call, check nvidia-smi: another process may use the "
        "device",
    ),
    "nccl": (
        "nccl_memory",
        "NCCL takes memory from the driver, not from PyTorch's cache",
        "leave memory for it: torch.cuda.set_per_process_memory_fraction below 1, or a smaller "
        "NCCL_BUFFSIZE",
    ),
    "jax": (
        "jax_memory",
        "JAX takes 75% of the device when it starts, no matter how much it needs",
        "XLA_PYTHON_CLIENT_PREALLOCATE=false, or XLA_PYTHON_CLIENT_MEM_FRACTION=.50 where PyTorch"
        " shares the device; if JAX has the device alone, a smaller batch or jax.checkpoint",
    ),
    "tensorflow": (
        "tensorflow_memory",
        "TensorFlow takes nearly the whole device when it starts, no matter how much it needs",
        "TF_FORCE_GPU_ALLOW_GROWTH=true where PyTorch shares the device; if TensorFlow has it"
        " alone, a smaller batch",
    ),
    "vllm": (
        "vllm_memory",
        "Weights and activations take all of vLLM's share of the device, so nothing is left "
        "for its cache",
        "raise gpu_memory_utilization (at most what nvidia-smi shows as free), or lower"
        " max_model_len or max_num_seqs, or raise tensor_parallel_size",
    ),
    "sglang": (
        "sglang_memory",
        "The weights take all of SGLang's share of the device, so nothing is left for its cache",
        "raise --mem-fraction-static (at most what nvidia-smi shows as free), or lower"
        " --context-length, or raise --tp",
    ),
    "ggml": (
        "ggml_memory",
        "llama.cpp requests each buffer (weights, KV cache, compute) from the driver in one piece",
        "fewer layers on the GPU (-ngl), a smaller context (-c) or batch (-ub), another"
        " --tensor-split; look at nvidia-smi for other processes",
    ),
    "onnx": (
        "onnx_memory",
        "ONNX Runtime's arena grows by doubling and never shrinks",
        "arena_extend_strategy=kSameAsRequested and a gpu_mem_limit in the CUDA provider's"
        " options; or a smaller batch",
    ),
    "cupy": (
        "cupy_memory",
        "CuPy has its own memory pool, separate from PyTorch's",
        "cupy.get_default_memory_pool().free_all_blocks() before it, or .set_limit(fraction=0.5)"
        " at the start",
    ),
}
VLLM_START = re.compile(
    r"\(([\d.]+)/([\d.]+ GiB)\) on startup.{0,80}?utilization \(([\d.]+), ([\d.]+ GiB)\)"
)
VLLM_START_FIX = (
    "vllm_memory",
    "vLLM claims a share of the whole device at startup, and other processes already use part "
    "of it",
    "lower gpu_memory_utilization to below the free share, or stop the other processes on the "
    "GPU (nvidia-smi lists them)",
)


def outside_findings(message: OomMessage, wall: str) -> tuple[Finding, ...]:
    """How to make room for what does not allocate through PyTorch's cache."""
    kind = message.kind
    if wall == "host" or kind in NOT_MEMORY:
        return ()
    if is_brief(message):
        return (Finding("no_figures", Verdict.LIKELY, *COMFYUI_FIX),)
    if kind in OUTSIDE_FIXES:
        slug, title, fix = (
            VLLM_START_FIX if VLLM_START.search(message.text) else OUTSIDE_FIXES[kind]
        )
        return (Finding(slug, _verdict(message), title, message.tried_bytes, fix=fix),)
    if kind in LIBRARIES:
        return (_library_finding(message),)
    if message.tried_bytes is None and "more than 1EB" not in message.text:
        title = (
            "This is only the beginning of the error; the size, the limit and the free memory "
            "are in the rest"
        )
        fix = "pass the whole error message, or record the failure: vramlens run -o oom.vram SCRIPT"
        return (Finding("no_figures", Verdict.POSSIBLE, title, fix=fix),)
    return ()


def _library_finding(message: OomMessage) -> Finding:
    name, fix = LIBRARIES[message.kind], ROOM
    title = (
        f"{name} allocates its handle and workspace from the driver, and PyTorch's cache "
        "left no memory there"
    )
    if "NOT_INITIALIZED" in message.text:
        title = (
            f"{name} could not start: often there is no memory for its handle, otherwise "
            "the context or driver is damaged"
        )
        fix += (
            "; if nvidia-smi shows free memory, look for an earlier CUDA error with "
            "CUDA_LAUNCH_BLOCKING=1"
        )
    return Finding("library_memory", _verdict(message), title, message.tried_bytes, fix=fix)


def _verdict(message: OomMessage) -> Verdict:
    return Verdict.POSSIBLE if message.verdict == Verdict.POSSIBLE else Verdict.LIKELY
