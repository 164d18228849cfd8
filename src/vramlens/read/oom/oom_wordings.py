"""The wordings of out-of-memory errors, as patterns, and the scan of a log for them.

They are those of PyTorch 1.0 to 2.13 (``c10/cuda/CUDACachingAllocator.cpp``,
``c10/cuda/CUDAMallocAsyncAllocator.cpp``, ``c10/xpu/XPUCachingAllocator.cpp``,
``aten/src/ATen/mps/MPSAllocator.mm``, ``c10/core/impl/alloc_cpu.cpp``), of NCCL
(``src/include/alloc.h``), of the CUDA libraries, of the Linux kernel, and of a few programs that
are seen beside them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

from vramlens.ground.verdict import Verdict
from vramlens.read.broken_lines import broken
from vramlens.read.engine_log_reader import EngineLogReader
from vramlens.read.oom.oom_figures import NOT_AVAILABLE, OomFigures, device_number, parse
from vramlens.read.oom.oom_text import OomMessage
from vramlens.read.oom.oom_traceback import FailedLine, Tracebacks

_BLOCK = 1 << 18
_WINDOW = 1 << 14  # the longest message, in bytes: room for about 250 "Process N has …" sentences
_FIGURES_WITHIN = 400
"""Bytes after a message's first words: prefixes of a log stand between them and the figures."""
_CONTEXT = 1 << 12
"""What is looked at before a message: its line's prefix, and whether pinning was under way."""

# A block of the log without any of these holds no message; ``in`` is several times faster than a
# pattern.
_WORDS = (
    b"emory|out of me|MEMORY|STATUS_|_ALLOC|Failed to CUDA|to mmap|DataLoader worker|oom|OOM when|Errno 12|bad_alloc"
    b"|Unable to allocate|error 1455|Signal 9|Killed|out of resource|bus error|forked subprocess|Allocation on d"
    b"|Tried to alloc"
).split(b"|")


# The first words of every message: the grammar below is only tried where one of them stands. Each
# begins with a plain letter, which lets ``re`` skip the places where none can.
_HEADS = re.compile(
    broken("CUDA out of m")
    + rb"|HIP out of m|XPU out of m|NPU out of m|MUSA out of m|MLU out of m|GCU out of m"
    rb"|Tried to alloc|Out of memory|Allocation on device|MPS backend out of|Cuda failure|HIP failure|Failed to CUDA"
    rb"|CUDA error: out|CUDA driver error|HIP error: out|HIP driver error|cuda runtime error|CUDA failed with"
    rb"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory|UR_RESULT_ERROR_OUT_OF"
    rb"|CUBLAS_STATUS_|HIPBLAS_STATUS_|rocblas_status_memory|CUDNN_STATUS_|CUFFT_ALLOC|HIPFFT_ALLOC"
    rb"|CUSOLVER_STATUS_|CUSPARSE_STATUS_|out of resource: |OOM when allocating|No available memory"
    rb"|DefaultCPUAllocator|unable to (?:mmap|open|allocate|resize)|DataLoader worker|Memory cgroup out"
    rb"|oom[-_]kill|task \d{1,7}: Out Of Memory|\[Errno 12\]|std::bad_alloc|Unable to allocate|os error 1455"
    rb"|node running low|Signal 9 |Killed|Unexpected bus error|allocating \d|Failed to allocate m"
    rb"|failed to allocate \d|out of memory to|Free memory on device|Not enough memory\. Please"
    rb"|OOMKilled|Loaded weights leave no|Cannot re-initialize CUDA in forked"
)
# Each alternative is one kind of message. Every repetition is bounded, so trying one costs a
# constant.
_START = re.compile(
    rb"(?P<alloc>(?:(?P<maker>CUDA|HIP|XPU|NPU|MUSA|MLU|GCU) o|O)ut of memory\.[\s#>|*]{1,8}Tried to alloc)"
    rb"|(?P<tried>^Tried to allocate(?= \d[\d.]{0,20} [KMGT]?i?B(?:\. GPU| \(GPU)))"
    rb"|(?P<async>Allocation on device ?(?P<place>[^ \n]{0,4}) would exceed allowed memory\."
    rb" \(out of memory\))"
    rb"|(?P<brief>(?:(?<=OutOfMemoryError: )|(?<=Exception Message:\*\* )|(?<=!!! ))"
    rb"Allocation on device(?: \d{1,3})?(?=[ \t\r]{0,3}$))"
    rb"|(?P<fork>Cannot re-initialize CUDA in forked subprocess)"
    rb"|(?P<mps>MPS backend out of memory)"
    rb"|(?P<bare>(?P<maker2>CUDA|HIP|XPU|NPU) out of memory)"
    rb"|(?P<wrapped>" + broken("CUDA out of memory") + rb")"
    rb"|(?P<nccl>(?:Cuda|HIP) failure:? (?:\d{1,4} )?'out of memory'"
    rb"|Failed to CUDA (?:calloc|malloc|host alloc)(?: async)?(?: \d{1,20} bytes)?)"
    rb"|(?P<driver>(?:CUDA|HIP)(?: driver)? error: out of memory|cuda runtime error \(2\) ?: out of memory"
    rb"|CUDA failed with error out of memory|CUDA_ERROR_OUT_OF_MEMORY(?:: out of memory)?"
    rb"|(?:cudaErrorMemoryAllocation|hipErrorOutOfMemory): out of memory"
    rb"|UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"
    rb"|(?P<cublas>(?:CUBLAS|HIPBLAS)_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)|rocblas_status_memory_error)"
    rb"|(?P<cudnn>CUDNN_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED|INTERNAL_ERROR_(?:HOST"
    rb"|DEVICE)_ALLOCATION_FAILED))"
    rb"|(?P<cufft>(?:CUFFT|HIPFFT)_ALLOC_FAILED)"
    rb"|(?P<cusolver>CUSOLVER_STATUS_ALLOC_FAILED)"
    rb"|(?P<cusparse>CUSPARSE_STATUS_(?:ALLOC_FAILED|INSUFFICIENT_RESOURCES))"
    rb"|(?P<triton>out of resource: [a-z ]{1,40}(?:, Required: \d{1,20})?)"
    rb"|(?P<jax>Out of memory (?:while )?trying to allocate (?=\d))"
    rb"|(?P<tensorflow>OOM when allocating tensor with shape)"
    rb"|(?P<vllm>No available memory for the cache blocks(?!\. ?\")|Free memory on device (?:[a-z:0-9]{1,12} )?\("
    rb"(?=[\d./]{3,20} GiB\) on startup is less than desired))"
    rb"|(?P<sglang>Not enough memory\. Please try (?:to increase|increasing) --mem-fraction-static"
    rb"|Loaded weights leave no GPU memory for the KV cache)"
    rb"|(?P<ggml>allocating (?=[\d.]{1,20} MiB on device \d{1,4}: (?:cuda|hip|musa)Malloc failed: out of memory))"
    rb"|(?P<onnx>Failed to allocate memory for requested buffer of size (?=\d))"
    rb"|(?P<cupy>(?:Out of memory allocating|out of memory to allocate) (?=[\d,]{1,26} bytes))"
    rb"|(?P<pool>failed to allocate [\d.]{1,12}[KMGT]?i?B? \(\d{1,20}(?: bytes)?\) "
    rb"from device: CUDA_ERROR_OUT_OF_MEMORY)"
    rb"|(?P<host>DefaultCPUAllocator: (?:can't allocate memory|not enough memory)"
    rb"|unable to mmap \d{1,20} bytes"
    rb"|DataLoader worker \(pid(?:\(s\))? [\d, ]{1,200}\) is killed by signal: (?:Bus error|Killed)"
    rb"|Unexpected bus error encountered in worker|unable to (?:open|allocate|resize) shared memory"
    rb"|(?:Memory cgroup o|O)ut of memory: Kill(?:ed)? process \d{1,10}|oom[-_]kill event"
    rb"|task \d{1,7}: Out Of Memory|\[Errno 12\] Cannot allocate memory|std::bad_alloc\b"
    rb"|Unable to allocate (?=[\d.]{1,20} [KMGT]iB for an array)"
    rb"|os error 1455|UR_RESULT_ERROR_OUT_OF_HOST_MEMORY|node running low on memory|OOMKilled\b"
    rb"|Signal 9 \(SIGKILL\) received|^Killed[ \t\r]{0,8}$|Killed {2,80}(?=[a-z./]))",
    re.MULTILINE,
)
# What these say has other causes too, so a reader must not be told that memory was certainly the
# reason.
_ONLY_POSSIBLE = re.compile(
    r"NOT_INITIALIZED|unable to open shared|INSUFFICIENT_RESOURCES|^Killed|SIGKILL"
    r"|is killed by signal: Killed|Unexpected bus error"
)
_RANK = re.compile(rb"\[rank[ :]?(\d{1,7})\]|\brank[ =:]{1,2}(\d{1,7})\b")
_LOGGED_AT = re.compile(rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?")
_GGML_DEVICE = re.compile(r"on device (\d{1,4}):")
_NCCL_DEVICE = re.compile(rb":\d{1,10}:\d{1,10} \[(\d{1,3})\]")


def messages(stream: BinaryIO | EngineLogReader) -> Iterator[OomMessage]:
    """Every message of a stream, from blocks that overlap by one window."""
    buffer, start, ended = b"", 0, False
    tracebacks = Tracebacks()
    read = searched = 0  # up to where they have read, and line breaks were looked for
    while not ended:
        # A pipe hands out small pieces; looking at each would search the overlap again and again.
        while not ended and len(buffer) < start + _BLOCK + _WINDOW:
            block = stream.read(_BLOCK)
            ended = not block
            buffer += block
        limit = len(buffer) if ended else len(buffer) - _WINDOW
        for match, end in _starts(buffer, start, limit):
            begin, start = match.span()
            line_start = buffer.rfind(b"\n", max(read, searched), begin) + 1
            if line_start:
                tracebacks.read(buffer, read, line_start)
                read = line_start
            searched = begin
            before = buffer[max(read, begin - _CONTEXT) : begin]
            message = _message(buffer, match, end, tracebacks.failed_line(before))
            if message is not None:
                yield message
        start = max(start, limit)
        dropped = max(searched, start - _CONTEXT)
        lines_end = max(buffer.rfind(b"\n", read, start) + 1, dropped, read)
        tracebacks.read(buffer, read, lines_end)
        buffer, start = buffer[dropped:], start - dropped
        read, searched = lines_end - dropped, 0


def _starts(buffer: bytes, start: int, limit: int) -> Iterator[tuple[re.Match[bytes], int]]:
    """Each place below limit where a message begins, and its latest end: one never holds
    another.
    """
    fresh = buffer[start:]
    if not any(word in fresh for word in _WORDS):
        return
    previous: re.Match[bytes] | None = None
    while head := _HEADS.search(buffer, start):
        match = _START.match(buffer, head.start())
        start = match.end() if match else head.start() + 1
        if match is None or _goes_on(previous, match):
            continue
        if previous is not None:
            yield previous, min(match.start(), previous.start() + _WINDOW)
        if match.start() >= limit:
            return
        previous = match
    if previous is not None:
        yield previous, previous.start() + _WINDOW


def _goes_on(previous: re.Match[bytes] | None, match: re.Match[bytes]) -> bool:
    """Whether a line of figures belongs to the message before it, whose first words another line has."""
    if match["tried"] is None or previous is None or previous["tried"] is not None:
        return False
    return match.start() - previous.end() < _FIGURES_WITHIN


def _message(
    buffer: bytes, match: re.Match[bytes], end: int, failed: FailedLine | None
) -> OomMessage | None:
    """The message that begins at a match; None for words that only quote one, as source code
    does.
    """
    begin = match.start()
    line_start = max(buffer.rfind(b"\n", max(0, begin - 400), begin) + 1, begin - 400, 0)
    before = buffer[line_start:begin]
    if match["bare"] and before[-1:] in (b'"', b"'", b"`"):
        return None
    kind = _kind_of(match)
    style = _STYLES.get(match.lastgroup or "", "line")
    figures = parse(style, buffer[begin:end], binary_units=kind == "mps")
    sizes = figures.available_sizes()
    other_processes = figures.available_processes()
    hidden = len(figures.other_processes) - len(other_processes)
    process_is_hidden = figures.sizes.get("process_bytes", 0) >= NOT_AVAILABLE
    context = buffer[max(0, begin - _CONTEXT) : begin]
    logged_at = _LOGGED_AT.search(before)
    return OomMessage(
        kind=kind,
        text=figures.text,
        verdict=_verdict_of(kind, figures.text),
        device=_device_of(match, kind, before, figures),
        rank=_rank_of(before),
        other_processes=other_processes,
        hidden_processes=hidden + process_is_hidden,
        hint_expandable="expandable_segments" in figures.text,
        while_pinning=kind == "driver" and b"pin_memory" in context,
        cut=figures.cut,
        roundings=_roundings(figures, sizes),
        frame=None if failed is None else failed.frame,
        library_frame=None if failed is None else failed.library,
        library_source="" if failed is None else failed.library_source,
        logged_at=logged_at[0].decode("ascii") if logged_at else "",
        **sizes,
    )


def _rank_of(before: bytes) -> int | None:
    rank = _RANK.search(before)
    return int(rank[1] or rank[2]) if rank else None


_STYLES = {
    "bare": "alloc",
    "tried": "alloc",
    "wrapped": "alloc",
    "alloc": "alloc",
    "async": "async",
    "mps": "mps",
}
"""How a message's clauses are worded, by the group that its start matches; else it is one line."""


def _kind_of(match: re.Match[bytes]) -> str:
    """What ran out, or whose message it is: ``cuda``, ``mps``, ``nccl``, ``host`` …"""
    group = match.lastgroup or ""
    if group in ("wrapped", "async", "brief", "tried"):
        return "cuda"
    if group in ("alloc", "bare"):
        maker: bytes = match["maker"] or match["maker2"] or b"device"
        return maker.decode("ascii").lower()
    return "driver" if group == "pool" else group


def _verdict_of(kind: str, text: str) -> Verdict:
    if kind in ("triton", "fork"):
        return Verdict.NOT_A_PROBLEM
    return Verdict.POSSIBLE if _ONLY_POSSIBLE.search(text) else Verdict.PROVEN


def _device_of(match: re.Match[bytes], kind: str, before: bytes, figures: OomFigures) -> int | None:
    """The device that a message, or the prefix of its line, names."""
    if match["async"]:
        return device_number(match["place"].decode("latin-1"))
    if kind == "nccl" and (in_prefix := _NCCL_DEVICE.search(before)):
        return int(in_prefix[1])
    if kind == "ggml" and (in_text := _GGML_DEVICE.search(figures.text)):
        return int(in_text[1])
    return figures.device


def _roundings(figures: OomFigures, sizes: dict[str, int]) -> tuple[tuple[str, int], ...]:
    """By figure, the most bytes by which its printed size may be off."""
    not_available = figures.sizes.keys() - sizes.keys()
    return tuple(
        (name, most_off)
        for name, most_off in figures.rounded.items()
        if most_off and name not in not_available
    )
