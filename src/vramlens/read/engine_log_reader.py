"""What vLLM, SGLang and NCCL print of their own memory in a log: budgets, milestones, buffers.

Wordings: vLLM's ``worker.py`` (to 0.8), ``gpu_worker.py`` and ``gpu_model_runner.py`` (V1), SGLang's
``model_runner.py``, ``memory_pool.py`` and ``scheduler.py``, NCCL's ``src/include/alloc.h``.
"""

from __future__ import annotations

import re
from typing import BinaryIO

from vramlens.trace.engine_log import EngineBudget, EngineLog
from vramlens.units import GIB

_OVERLAP = 1 << 10
"""Bytes: no line that is looked for is longer."""
_MOST_BUFFERS = 200_000
_NEEDLES = (
    b"model weights take",
    b"total_gpu_memory",
    b"odel loading took",
    b"model weights took",
    b"KV cache memory",
    b"KV Cache is allocated",
    b"oad weight end",
    b"Memory pool end",
    b"artup complete",
    b"warmup model) took",
    b"fired up and ready",
    b"Alloc Size",
)
_SIZE = rb"(-?\d{1,6}(?:\.\d{1,6})?) ?G(?:i?B)?"
_LINES = re.compile(
    rb"(?P<vllm_share>total_gpu_memory \(" + _SIZE + rb"\) x gpu_memory_utilization"
    rb" \((\d\.\d{1,4})\) = " + _SIZE + rb")"
    rb"|(?P<vllm_parts>model weights take " + _SIZE + rb"; ?non_torch_memory takes " + _SIZE + rb";"
    rb" ?PyTorch activation peak memory takes " + _SIZE + rb"; ?"
    rb"(?:the rest of the memory reserved for KV Cache is " + _SIZE + rb")?)"
    rb"|(?P<vllm_weights>(?:Model loading|model weights) took " + _SIZE + rb")"
    rb"|(?P<vllm_cache>Available KV cache memory: " + _SIZE + rb")"
    rb"|(?P<vllm_ready>Application startup complete"
    rb"|init engine \(profile, create kv cache, warmup model\) took)"
    rb"|(?P<sglang_weights>Load weight end\.[^\n]{0,200}?avail mem=" + _SIZE + rb"[^\n]{0,20}?"
    rb"(?:mem usage=" + _SIZE + rb")?)"
    rb"|(?P<sglang_cache>KV Cache is allocated\.[^\n]{0,80}?(?:K size: " + _SIZE + rb", V size: "
    + _SIZE + rb"|KV size: " + _SIZE + rb"))"
    rb"|(?P<sglang_pool>Memory pool end\. avail mem=" + _SIZE + rb")"
    rb"|(?P<sglang_ready>The server is fired up and ready)"
    rb"|(?P<nccl>(?<!\d)(\d{1,10}):\d{1,10} \[(\d{1,3})\] NCCL INFO [^\n]{0,80}?(?:Cuda|CuMem|CUMEM) Alloc"
    rb" Size (\d{1,16}) pointer (0x[0-9a-f]{1,16}))"
)  # fmt: skip


class EngineLogReader:
    """A stream that notes what engines print while it is read for errors."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._tail = b"\n"
        self._buffers: set[tuple[int, int, bytes]] = set()
        self.log = EngineLog()

    def read(self, size: int = -1) -> bytes:
        """The next bytes of the stream."""
        block = self._stream.read(size)
        text = self._tail + block
        if any(needle in text for needle in _NEEDLES):
            self._note(text, last=not block)
        self._tail = text[-_OVERLAP - 1 :] if block else b"\n"
        return block

    def _note(self, text: bytes, *, last: bool) -> None:
        """Notes what begins before the overlap: what begins in it is seen again. The first byte
        only shows what the next one comes after.
        """
        limit = len(text) if last else len(text) - _OVERLAP
        for match in _LINES.finditer(text, 1):
            if match.start() >= limit:
                return
            kind = next(name for name, words in match.groupdict().items() if words is not None)
            figures = [figure for figure in match.groups()[match.re.groupindex[kind] :] if figure]
            if kind == "nccl":
                self._note_buffer(*figures[:4])
            else:
                _note_budget(self._budget_of(kind), kind, figures)

    def _note_buffer(self, process: bytes, device: bytes, size: bytes, pointer: bytes) -> None:
        key = int(process), int(device)
        buffer = (*key, pointer)
        if buffer in self._buffers or len(self._buffers) >= _MOST_BUFFERS:
            return
        self._buffers.add(buffer)
        self.log.nccl_bytes[key] = self.log.nccl_bytes.get(key, 0) + int(size)

    def _budget_of(self, kind: str) -> EngineBudget:
        engine = kind.partition("_")[0]
        budget = self.log.budget
        restarted = budget is not None and budget.is_ready and kind.endswith("_weights")
        if budget is None or budget.engine != engine or restarted:
            budget = self.log.budget = EngineBudget(engine)
        return budget


def _note_budget(budget: EngineBudget, kind: str, figures: list[bytes]) -> None:
    """Notes the figures of one line; SGLang's GB are GiB."""
    sizes = [round(float(figure) * GIB) for figure in figures]
    if kind == "vllm_share":
        budget.total_bytes, budget.utilization = sizes[0], float(figures[1])
    elif kind == "vllm_parts":
        budget.weights_bytes, budget.non_torch_bytes, budget.activations_bytes = sizes[:3]
        if len(sizes) > 3:
            _note_cache(budget, sizes[3])
    elif kind == "vllm_weights":
        budget.weights_bytes = sizes[0]
    elif kind == "sglang_weights":
        budget.weights_bytes = sizes[1] if len(sizes) > 1 else None
    elif kind.endswith("_cache"):
        _note_cache(budget, sum(sizes))
    elif kind == "sglang_pool":
        budget.has_cache = True
    else:
        budget.is_ready = True


def _note_cache(budget: EngineBudget, size_bytes: int) -> None:
    budget.cache_bytes, budget.has_cache = size_bytes, size_bytes > 0
