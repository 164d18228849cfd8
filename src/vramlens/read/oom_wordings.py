"""The wordings of out-of-memory errors, as patterns, and the scan of a log for them.

They are those of PyTorch 1.0 to 2.13 (``c10/cuda/CUDACachingAllocator.cpp``,
``c10/cuda/CUDAMallocAsyncAllocator.cpp``, ``c10/xpu/XPUCachingAllocator.cpp``,
``aten/src/ATen/mps/MPSAllocator.mm``, ``c10/core/impl/alloc_cpu.cpp``), of NCCL
(``src/include/alloc.h``), of the CUDA libraries, of the Linux kernel, and of a few programs that
are seen beside them.

A message may be broken over lines anywhere, also inside words and numbers, as a terminal does: it
is read once with line breaks as spaces and once without any space, and the reading that yields more
figures is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import BinaryIO

from vramlens.read.broken_lines import broken, plain_lines, squash, unbroken
from vramlens.read.engine_log import EngineLogReader
from vramlens.read.oom_text import OomMessage
from vramlens.read.oom_traceback import Tracebacks
from vramlens.trace.stacks import Frame

_BLOCK = 1 << 18
_WINDOW = 1 << 14  # the longest message, in bytes: room for about 250 "Process N has …" sentences
_CONTEXT = (
    1 << 12
)  # what is looked at before a message: its line's prefix, and whether pinning was under way
_GAP = 160  # characters that may stand between two clauses of one message (new wordings, wrapped prefixes)
_LINE = 600  # characters kept of a message that is one line
_NOT_AVAILABLE = 1 << 62  # 2**64 - 1 stands for "not known" and is printed as 17179869184.00 GiB

# A block of the log without any of these holds no message; ``in`` is several times faster than a
# pattern.
_WORDS = (
    b"emory|out of me|MEMORY|STATUS_|_ALLOC|Failed to CUDA|to mmap|DataLoader worker|oom|OOM when|Errno 12|bad_alloc"
    b"|Unable to allocate|error 1455|Signal 9|Killed|out of resource|bus error|forked subprocess|Allocation on d"
).split(b"|")


# The first words of every message: the grammar below is only tried where one of them stands. Each
# begins with a plain letter, which lets ``re`` skip the places where none can.
_HEADS = re.compile(
    broken("CUDA out of m")
    + rb"|HIP out of m|XPU out of m|NPU out of m|MUSA out of m|MLU out of m|GCU out of m"
    rb"|Out of memory|Allocation on device|MPS backend out of|Cuda failure|HIP failure|Failed to CUDA"
    rb"|CUDA error: out|CUDA driver error|HIP error: out|HIP driver error|cuda runtime error|CUDA failed with"
    rb"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory|UR_RESULT_ERROR_OUT_OF"
    rb"|CUBLAS_STATUS_|HIPBLAS_STATUS_|rocblas_status_memory|CUDNN_STATUS_|CUFFT_ALLOC|HIPFFT_ALLOC"
    rb"|CUSOLVER_STATUS_|CUSPARSE_STATUS_|out of resource: |OOM when allocating|No available memory"
    rb"|DefaultCPUAllocator|unable to (?:mmap|open|allocate|resize)|DataLoader worker|Memory cgroup out"
    rb"|oom[-_]kill|task \d{1,7}: Out Of Memory|\[Errno 12\]|std::bad_alloc|Unable to allocate|os error 1455"
    rb"|node running low|Signal 9 |Killed|Unexpected bus error|allocating \d|Failed to allocate m"
    rb"|failed to allocate \d|out of memory to"
    rb"|Free memory on device|Not enough memory\. Please|OOMKilled|Loaded weights leave no"
    rb"|Cannot re-initialize CUDA in forked"
)
# Each alternative is one kind of message. Every repetition is bounded, so trying one costs a
# constant.
_START = re.compile(
    rb"(?P<alloc>(?:(?P<maker>CUDA|HIP|XPU|NPU|MUSA|MLU|GCU) o|O)ut of memory\.[\s#>|*]{1,8}Tried to alloc)"
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

_SIZE = r"(\d{1,20})(?:\.(\d{1,6}))? ?(bytes?|[KMGT]i?B)\b"
# What may follow a start, by the message's style: a figure's name and its words; "" only lengthens
# the text.
_CLAUSES = {
    "alloc": (
        ("tried_bytes", rf"Tried to allocate {_SIZE}"),
        # 2.1 to 2.3 print the device's number as a raw byte: GPU 0 is "GPU \0", which terminals
        # swallow.
        ("device", r"\bGPU ([\x00-\x08]|\d{1,4})? ?(?=has a total capac)"),
        ("device", r"\([A-Z]{3,4} (\d{1,4}); "),
        ("total_bytes", rf"has a total capaci?ty of {_SIZE}"),
        ("total_bytes", rf"{_SIZE} total capacity"),
        ("free_bytes", rf"of which {_SIZE} is free"),
        ("free_bytes", rf"{_SIZE} free[;)]"),
        ("other_processes", rf"Process (\d{{1,10}}) has {_SIZE} memory in use"),
        ("process_bytes", rf"this process has {_SIZE} memory in use"),
        ("allowed_bytes", rf"{_SIZE} allowed;"),
        ("allocated_bytes", rf"Of the allocated memory {_SIZE} is allocated by PyTorch"),
        ("allocated_bytes", rf"{_SIZE} already allocated"),
        ("private_pool_bytes", rf"with {_SIZE} allocated in private pools"),
        ("unallocated_bytes", rf"and {_SIZE} is reserved by PyTorch but unallocated"),
        ("unallocated_bytes", rf"{_SIZE} cached\)"),
        ("reserved_bytes", rf"{_SIZE} reserved in total by PyTorch"),
        (
            "",
            r"expandable_segments:True to avoid fragmentation|max_split_size_mb to avoid fragmentation",
        ),
        (
            "",
            r"See documentation for Memory Management(?: and [A-Z_]{1,40}| \(https?://[^ )]{1,200}\))?",
        ),
        ("", r"more than 1EB memory|release all unoccupied cached memory"),
    ),
    "async": (
        ("allocated_bytes", rf"Currently allocated\s{{0,8}}: {_SIZE}"),
        ("tried_bytes", rf"Requested\s{{0,20}}: {_SIZE}"),
        ("total_bytes", rf"Device limit\s{{0,20}}: {_SIZE}"),
        ("free_bytes", rf"Free \(according to CUDA\): {_SIZE}"),
        (
            "allowed_bytes",
            rf"PyTorch limit \(set by user-supplied memory fraction\)\s{{0,40}}: {_SIZE}",
        ),
    ),
    "mps": (
        ("allocated_bytes", rf"MPS allocated: {_SIZE}"),
        ("other_allocations", rf"other allocations: {_SIZE}"),
        ("allowed_bytes", rf"max allowed: {_SIZE}"),
        ("tried_bytes", rf"Tried to allocate {_SIZE}"),
        (
            "",
            r"PYTORCH_MPS_HIGH_WATERMARK_RATIO=0\.0 to disable upper limit for memory allocations",
        ),
    ),
    "line": (
        (
            "tried_bytes",
            rf"(?:tr(?:ied|ying) to allocate|calloc|malloc|host alloc|async|mmap) {_SIZE}",
        ),
        ("tried_bytes", rf"(?:Unable to allocate|^allocating) {_SIZE}"),
        (
            "tried_bytes",
            r"(?:requested buffer of size|memory allocating|memory to allocate) ([\d,]{1,26})()()\b",
        ),
        ("tried_bytes", r"^failed to allocate [\d.]{1,12}[KMGT]?i?B? \((\d{1,20})()()"),
    ),
}
_PATTERNS = {
    style: re.compile("|".join(f"(?P<c{i}>{pattern})" for i, (_, pattern) in enumerate(clauses)))
    for style, clauses in _CLAUSES.items()
}
# The same without any space, for messages that are broken inside words.
_SQUASHED = {
    style: re.compile(
        pattern.pattern.replace(r"\b", "")
        .replace(" ?", "")
        .replace("[^ )]", "[^)]")
        .replace(" ", "")
    )
    for style, pattern in _PATTERNS.items()
    if style != "line"
}
# A sentence of PyTorch's message that has begun and gives a figure, without spaces; and what it may
# be cut to.
_SENTENCE = re.compile(
    r"Triedtoalloc(?!atemorethan1EB)|GPU.{0,4}(?:hasatotal|h?a?s?$)|Process\d{1,10}h?a?s?(?:\d|$)|Includingnon"
    r"|Oftheallocated|\d{1,20}(?:\.\d{0,6})?[KMGT]?i?B?(?:al{0,2}o?w?e?d?)?;?$"
)
_SENTENCES = (
    "Triedtoallocate",
    "GPU0hasatotal",
    "Includingnon-PyTorchmemory",
    "Oftheallocatedmemory",
    "Process",
)


def messages(stream: BinaryIO | EngineLogReader) -> Iterator[OomMessage]:
    """Every message of a stream, from blocks that overlap by one window."""
    buffer, line, start, ended = b"", 1, 0, False
    tracebacks, read, searched = (
        Tracebacks(),
        0,
        0,
    )  # up to where they have read, and line breaks were looked for
    while not ended:
        # A pipe hands out small pieces; looking at each would search the overlap again and again.
        while not ended and len(buffer) < start + _BLOCK + _WINDOW:
            block = stream.read(_BLOCK)
            ended = not block
            buffer += block
        limit = len(buffer) if ended else len(buffer) - _WINDOW
        counted = 0
        for match, end in _starts(buffer, start, limit):
            line += buffer.count(b"\n", counted, match.start())
            counted = match.start()
            start = match.end()
            line_start = buffer.rfind(b"\n", max(read, searched), counted) + 1
            if line_start:
                tracebacks.read(buffer, read, line_start)
                read = line_start
            searched = counted
            before = buffer[max(read, counted - _CONTEXT) : counted]
            message = _message(buffer, match, end, line, tracebacks.frame_of(before))
            if message is not None:
                yield message
        start = max(start, limit)
        dropped = max(counted, start - _CONTEXT)
        line += buffer.count(b"\n", counted, dropped)
        whole = max(buffer.rfind(b"\n", read, start) + 1, dropped, read)
        tracebacks.read(buffer, read, whole)
        buffer, start, read, searched = buffer[dropped:], start - dropped, whole - dropped, 0


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
        if match is None:
            continue
        if previous is not None:
            yield previous, min(match.start(), previous.start() + _WINDOW)
        if match.start() >= limit:
            return
        previous = match
    if previous is not None:
        yield previous, previous.start() + _WINDOW


def _message(
    buffer: bytes, match: re.Match[bytes], end: int, line: int, frame: Frame | None
) -> OomMessage | None:
    """The message that begins at a match; None for words that only quote one, as source code
    does.
    """
    begin = match.start()
    before = buffer[
        max(buffer.rfind(b"\n", max(0, begin - 400), begin) + 1, begin - 400, 0) : begin
    ]
    if match["bare"] and before[-1:] in (b'"', b"'", b"`"):
        return None
    group = match.lastgroup or ""
    maker = (
        match["maker"]
        or match["maker2"]
        or (b"CUDA" if match["async"] or match["wrapped"] else b"device")
    )
    kind = (
        maker.decode("ascii").lower() if group in ("alloc", "bare", "wrapped", "async") else group
    )
    kind = {"pool": "driver", "brief": "cuda"}.get(kind, kind)
    style = {
        "bare": "alloc",
        "wrapped": "alloc",
        "alloc": "alloc",
        "async": "async",
        "mps": "mps",
    }.get(group, "line")
    figures = _parse(style, buffer[begin:end], binary_units=kind == "mps")
    sizes = {name: size for name, size in figures.sizes.items() if size < _NOT_AVAILABLE}
    unknown = figures.sizes.keys() - sizes.keys()
    device = figures.device
    if match["async"]:
        device = _device_number(match["place"].decode("latin-1"))
    elif kind == "nccl" and (named := _NCCL_DEVICE.search(before)):
        device = int(named[1])
    elif kind == "ggml" and (place := _GGML_DEVICE.search(figures.text)):
        device = int(place[1])
    rank = _RANK.search(before)
    possible = _ONLY_POSSIBLE.search(figures.text)
    return OomMessage(
        kind=kind,
        text=figures.text,
        line_number=line,
        verdict="not a problem"
        if kind in ("triton", "fork")
        else "possible"
        if possible
        else "proven",
        device=device,
        rank=int(rank[1] or rank[2]) if rank else None,
        other_processes=tuple(other for other in figures.others if other[1] < _NOT_AVAILABLE),
        hidden_processes=sum(size >= _NOT_AVAILABLE for _, size in figures.others)
        + (figures.sizes.get("process_bytes", 0) >= _NOT_AVAILABLE),
        hint_expandable="expandable_segments" in figures.text,
        hint_max_split="max_split_size_mb" in figures.text,
        while_pinning=kind == "driver"
        and b"pin_memory" in buffer[max(0, begin - _CONTEXT) : begin],
        cut=figures.cut,
        roundings=tuple(
            (name, most) for name, most in figures.rounded.items() if most and name not in unknown
        ),
        frame=frame,
        logged_at=logged[0].decode("ascii") if (logged := _LOGGED_AT.search(before)) else "",
        **sizes,
    )


@dataclass(slots=True)
class _Figures:
    """What the clauses of one message said, the first of each name."""

    text: str = ""
    device: int | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    rounded: dict[str, int] = field(default_factory=dict)
    others: list[tuple[int, int]] = field(default_factory=list)
    count: int = 0  # of clauses
    last: int = 0  # where the last figure ends, its name, and whether a bracket closed there
    last_name: str = ""
    closed: bool = False
    cut: bool = False

    def add(self, name: str, groups: tuple[str, ...], binary_units: bool) -> None:
        """Keep one clause's groups under its name."""
        if name == "device":
            self.device = _device_number(groups[0]) if self.device is None else self.device
            return
        pid = int(groups[0]) if name == "other_processes" else None
        whole, fraction, unit = groups[-3:]
        size, slack = _size(whole, fraction, unit, binary_units)
        if pid is not None:
            self.others.append((pid, size))
            self.rounded[name] = self.rounded.get(name, 0) + (slack if size < _NOT_AVAILABLE else 0)
        elif name not in self.sizes:
            self.sizes[name], self.rounded[name] = size, slack

    def sum_up(self, name: str, first: str, second: str) -> None:
        """Fill a figure that was not printed with the sum of two that were."""
        if name not in self.sizes and {first, second} <= self.sizes.keys():
            self.sizes[name] = self.sizes[first] + self.sizes[second]
            self.rounded[name] = self.rounded[first] + self.rounded[second]


@lru_cache(maxsize=64)  # a loop that retries prints the same text again and again
def _parse(style: str, window: bytes, binary_units: bool) -> _Figures:
    """The figures in a window of the log that begins with a message, and the message's own text."""
    lines = plain_lines(window)
    text = (
        " ".join(lines[0][:_LINE].split()) if style == "line" else " ".join(" ".join(lines).split())
    )
    figures, end = _read(style, text, _PATTERNS[style], binary_units)
    if style == "line":
        figures.text = text
    else:
        squashed = squash("".join(line.strip() for line in lines))
        whole, whole_end = _read(style, squashed, _SQUASHED[style], binary_units)
        rest = squash(text[figures.last : figures.last + _GAP])
        if whole.count > figures.count or (
            whole.count == figures.count and whole.sizes != figures.sizes
        ):
            text, end = unbroken(lines, whole_end)
            figures, rest = whole, squashed[whole.last :]
        figures.text = text[: max(end, text.find(".") + 1 or len(text[:_GAP]))].strip()
        figures.cut = _is_cut(style, figures, rest)
    figures.sum_up("reserved_bytes", "allocated_bytes", "unallocated_bytes")
    figures.sum_up(
        "process_bytes", "allocated_bytes", "other_allocations"
    )  # MPS prints the two apart
    figures.sizes.pop("other_allocations", None)
    figures.rounded.pop("other_allocations", None)
    return figures


def _read(
    style: str, text: str, pattern: re.Pattern[str], binary_units: bool
) -> tuple[_Figures, int]:
    """The figures that a text begins with, and where the last clause ends."""
    figures, position, clauses = _Figures(), 0, _CLAUSES[style]
    # The start's own words are no clause, so the first clause may stand as far away as they are
    # long.
    while match := pattern.search(text, position, position + 2 * _GAP):
        if match.start() > position + _GAP:
            break
        position = match.end()
        index = int((match.lastgroup or "c0")[1:])
        name, first = clauses[index][0], pattern.groupindex[f"c{index}"]
        figures.count += 1
        if name:
            ends = pattern.groupindex.get(f"c{index + 1}", pattern.groups + 1)
            figures.add(
                name, tuple(match[group] or "" for group in range(first + 1, ends)), binary_units
            )
            figures.last, figures.last_name = position, name
            figures.closed = match[0].endswith(")")
    return figures, position


def _is_cut(style: str, figures: _Figures, rest: str) -> bool:
    """Whether a message stops where PyTorch goes on; rest is what follows its last figure,
    without spaces.
    """
    if style == "mps":
        return "tried_bytes" not in figures.sizes
    if style == "async":
        return "allowed_bytes" not in figures.sizes
    if figures.last_name == "unallocated_bytes" or figures.closed:
        return False
    if figures.last_name:
        if rest[:1] not in (".", ")") or figures.last_name in (
            "allowed_bytes",
            "private_pool_bytes",
        ):
            return True
        rest = rest[1:]
    rest = rest[rest.find(".") + 1 :] if not figures.last_name else rest
    return bool(
        _SENTENCE.match(rest)
        or (rest and any(sentence.startswith(rest) for sentence in _SENTENCES))
    )


def _device_number(text: str) -> int | None:
    """The device that a message names with digits, or with a raw byte."""
    if text.isdecimal():
        return int(text)
    return ord(text) if len(text) == 1 and ord(text) < 9 else None


def _size(whole: str, fraction: str, unit: str, binary_units: bool) -> tuple[int, int]:
    """A printed size in bytes, and the most by which rounding may have moved it."""
    if unit[:1] in ("", "b", "B"):
        return int(whole.replace(",", "") or 0), 0
    base = 1024 if "i" in unit or binary_units else 1000
    factor, scale = base ** ("KMGT".index(unit[0]) + 1), 10 ** len(fraction)
    return round(int(whole + fraction) * factor / scale), -(-factor // (2 * scale))
