"""The device's ledger: where all memory of a GPU is right now; its rows sum to the device's total,
always.

What PyTorch holds it says itself, what the device holds the driver says; the rest is told apart by
process where the driver lists them. Every row says how sure it is. Nothing here initialises CUDA,
makes a context, waits for the GPU or raises; a call takes about a millisecond a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from vramlens.capture.memory.driver import (
    Driver,
    Gpu,
    GpuMemory,
    GpuProcess,
    driver,
    own_pids,
    process_name,
)
from vramlens.capture.memory.pytorch_memory import Held, PyTorch
from vramlens.units import counted, format_size

_GIVES_WAY = (
    "this_process_other",
    "outside_pytorch",
    "other_processes",
    "nccl",
    "free",
    "driver_reserved",
)
"""Which row is cut first where the figures add up to more than the device has; PyTorch's own
come last.
"""
_TRIES = 3
_NAMED = 6


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One part of a device's memory.

    Attributes:
        kind: driver_reserved, pytorch_allocated (live), pytorch_cached (reserved and not live, in
            private pools too), nccl, this_process_other, other_processes, outside_pytorch (these
            two where they cannot be told apart), unknown or free.
        bytes: its size.
        confidence: exact (somebody counted it), inferred (by subtraction or elimination) or
            unknown.
        note: what is in it and why it is not exact; may be empty.
    """

    kind: str
    bytes: int
    confidence: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class LedgerProcess:
    """A process on the device, as the driver lists it; ``is_this`` is None where that cannot be
    told.
    """

    pid: int
    bytes: int | None
    name: str | None
    is_this: bool | None


@dataclass(frozen=True, slots=True)
class Ledger:
    """All memory of one GPU.

    Attributes:
        device: CUDA's index in this process.
        total_bytes: the sum of all rows; None, and no rows, where nobody says.
        has_context: whether PyTorch of this process uses the device.
        notes: what could not be asked or told apart, in sentences.
    """

    device: int
    name: str | None = None
    uuid: str | None = None
    total_bytes: int | None = None
    rows: tuple[LedgerRow, ...] = ()
    has_context: bool = False
    processes: tuple[LedgerProcess, ...] = ()
    notes: tuple[str, ...] = ()

    def bytes_of(self, kind: str) -> int | None:
        """The size of a row; None where there is no such row."""
        return next((row.bytes for row in self.rows if row.kind == kind), None)

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        return asdict(self)


def ledger(device: Any = None, *, ask_nccl: bool = True) -> Ledger:
    """The ledger of one GPU.

    Args:
        device: an index, ``"cuda:1"`` or a ``torch.device``; by default the current one, else the
            first.
        ask_nccl: whether NCCL is asked for its own bytes. That waits for the communicators' locks,
            which a rank that hangs may hold: leave it out wherever the program may be in trouble.
    """
    index = 0
    try:
        pytorch = PyTorch()
        index = pytorch.index_of(device)
        nvml, reason = driver()
        gpus = _visible(pytorch, nvml)
        if 0 <= index < len(gpus):
            return _ledger_of(gpus[index], pytorch, nvml, reason, ask_nccl)
        missing = f"There is no GPU {index} here: this process sees {len(gpus) or 'none'}."
        return Ledger(index, notes=(missing, reason) if reason else (missing,))
    except Exception as error:
        return Ledger(
            index, notes=(f"The ledger could not be read: {error or type(error).__name__}.",)
        )


def ledgers() -> tuple[Ledger, ...]:
    """The ledgers of all GPUs that this process sees, those without a CUDA context here too."""
    try:
        pytorch, (nvml, reason) = PyTorch(), driver()
        return tuple(_ledger_of(gpu, pytorch, nvml, reason) for gpu in _visible(pytorch, nvml))
    except Exception:
        return ()


def rows_of(
    memory: GpuMemory, held: Held, pids: Iterable[int], *, at_home: bool
) -> tuple[LedgerRow, ...]:
    """The rows for what the driver and PyTorch say; they sum to ``memory.total_bytes`` and none is
    negative.

    ``pids`` and ``at_home`` are what ``own_pids`` says.
    """
    kept = memory.reserved_bytes
    rows = (
        []
        if kept is None
        else [LedgerRow("driver_reserved", kept, "exact", "kept by the driver and firmware")]
    )
    rows += _pytorch_rows(held)
    outside = memory.total_bytes - memory.free_bytes - (kept or 0) - (held.reserved_bytes or 0)
    rows += _process_rows(memory.processes, outside, held, tuple(pids), at_home)
    rows.append(LedgerRow("free", memory.free_bytes, "exact"))
    return _closed(rows, memory.total_bytes)


def _ledger_of(
    gpu: Gpu, pytorch: PyTorch, nvml: Driver | None, reason: str, ask_nccl: bool = True
) -> Ledger:
    held = pytorch.held(gpu.index)
    for _ in range(_TRIES):  # until nothing was allocated between the two questions
        memory = nvml.memory(gpu) if nvml is not None and pytorch.is_nvidia else None
        before, held = held, pytorch.held(gpu.index)
        if held == before:
            break
    notes = [gpu.note, held.note]
    if ask_nccl:
        held = pytorch.with_nccl(gpu.index, held)
    if memory is None:
        if pytorch.is_nvidia:
            notes.insert(0, reason or "The driver gives no figures for this GPU.")
        memory = pytorch.device_memory(gpu.index, held)
    base = Ledger(
        gpu.index, gpu.name, gpu.uuid, None, (), held.has_context, (), tuple(filter(None, notes))
    )
    if memory is None:
        total = getattr(
            pytorch.properties(gpu.index), "total_memory", None
        )  # without what the driver keeps
        if total is None:
            return base
        return replace(
            base, total_bytes=total, rows=_closed(_pytorch_rows(held) + _nccl_rows(held), total)
        )
    pids, at_home = own_pids()
    rows = rows_of(memory, held, pids, at_home=at_home)
    own = _own(memory.processes, held, pids, at_home)
    processes = []
    for process in memory.processes or ():
        name, is_this = _name(process, at_home), None if own is None else process.pid == own.pid
        processes.append(LedgerProcess(process.pid, process.used_bytes, name, is_this))
    return replace(base, total_bytes=memory.total_bytes, rows=rows, processes=tuple(processes))


def _pytorch_rows(held: Held) -> list[LedgerRow]:
    if held.allocated_bytes is None or held.reserved_bytes is None:
        return []
    note = ""
    if held.pool_bytes:
        size = format_size(held.pool_bytes)
        note = f"{size} of what PyTorch reserved is in private pools (CUDA graphs), which alone can use it"
    return [
        LedgerRow("pytorch_allocated", held.allocated_bytes, "exact"),
        LedgerRow(
            "pytorch_cached", max(0, held.reserved_bytes - held.allocated_bytes), "exact", note
        ),
    ]


def _nccl_rows(held: Held, most: int | None = None) -> list[LedgerRow]:
    if held.nccl_bytes is None:
        return []
    size = held.nccl_bytes if most is None else min(held.nccl_bytes, most)
    sure = held.nccl_certain and size == held.nccl_bytes
    note = "communicators of PyTorch's process groups, as NCCL counts them"
    return [LedgerRow("nccl", size, "exact" if sure else "inferred", note)]


@dataclass(frozen=True, slots=True)
class _Own:
    """This process in the driver's list; ``pid`` None: it is not on the device; ``bytes`` None:
    not said.
    """

    pid: int | None
    bytes: int | None
    confidence: str


def _own(
    listed: tuple[GpuProcess, ...] | None, held: Held, pids: tuple[int, ...], at_home: bool
) -> _Own | None:
    """This process among those on the device; None where that cannot be told."""
    if listed is None:
        return None
    reserved = held.reserved_bytes or 0
    match = next((process for process in listed if process.pid in pids), None)
    if match is not None:
        fits = match.used_bytes is not None and match.used_bytes >= reserved
        if at_home:
            return _Own(match.pid, match.used_bytes, "exact" if fits else "inferred")
        if fits:  # in a container the same number may be another process of the host
            sure = len(pids) > 1 and match.pid == pids[0]
            return _Own(match.pid, match.used_bytes, "exact" if sure else "inferred")
    if not held.has_context:
        return _Own(None, 0, "exact" if at_home else "inferred")
    if not at_home and len(listed) == 1:
        only = listed[0]
        if only.used_bytes is not None and only.used_bytes >= reserved:
            return _Own(only.pid, only.used_bytes, "inferred")
    return None


def _process_rows(
    listed: tuple[GpuProcess, ...] | None,
    outside: int,
    held: Held,
    pids: tuple[int, ...],
    at_home: bool,
) -> list[LedgerRow]:
    """What is used and not PyTorch's, by process; ``outside`` is how much that is, by the
    driver's own sum.
    """
    own = _own(listed, held, pids, at_home)
    others = [process for process in listed or () if own is None or process.pid != own.pid]
    known = sum(process.used_bytes or 0 for process in others)
    complete = all(process.used_bytes is not None for process in others)
    if own is None or (own.bytes is None and not complete):
        nccl = _nccl_rows(held, max(0, outside))
        rest = max(0, outside - sum(row.bytes for row in nccl))
        note = f"this process outside PyTorch, and other processes: {_why_together(listed, others, at_home)}"
        return [*nccl, LedgerRow("outside_pytorch", rest, "inferred", note)]
    confidence = own.confidence
    mine = outside - known if own.bytes is None else own.bytes - (held.reserved_bytes or 0)
    if mine < 0:
        mine, confidence = 0, "inferred"
    nccl = _nccl_rows(held, mine)
    rest = mine - sum(row.bytes for row in nccl)
    rows = [
        *nccl,
        LedgerRow("this_process_other", rest, confidence, _what_is_other(held, own, bool(nccl))),
    ]
    names = _names(others, at_home)
    if complete:
        sure = "exact" if own.confidence == "exact" or own.bytes is None else "inferred"
        return [*rows, LedgerRow("other_processes", known, sure, names)]
    note = f"{names}; by subtraction: the driver does not give the size of each"
    return [*rows, LedgerRow("other_processes", max(known, outside - mine), "inferred", note)]


def _what_is_other(held: Held, own: _Own, nccl_is_apart: bool) -> str:
    if own.pid is None:
        return "no CUDA context of this process here"
    parts = ["CUDA context", "loaded kernels", "cuBLAS and cuDNN handles"]
    if not nccl_is_apart:
        parts.append("NCCL")
    if held.reserved_bytes is None:
        parts.append("PyTorch's tensors, which its allocator does not count")
    text = ", ".join(parts)
    if own.bytes is None:
        return f"{text}; by subtraction: the driver does not give this process's size"
    return (
        f"{text}; process {own.pid} is taken for this one" if own.confidence == "inferred" else text
    )


def _why_together(
    listed: tuple[GpuProcess, ...] | None, others: list[GpuProcess], at_home: bool
) -> str:
    if listed is None:
        return "the driver does not list the processes here"
    if not others:
        return "the driver lists none here"
    names = _names(others, at_home)
    if any(process.used_bytes is None for process in others):
        return f"the driver lists {names}, without the size of each"
    return (
        f"the driver lists others only: {names}"
        if at_home
        else f"which of {names} is this one is not known"
    )


def _name(process: GpuProcess, at_home: bool) -> str | None:
    # Inside a container the host's number may be that of somebody else.
    return process_name(process.pid) if at_home else None


def _names(processes: list[GpuProcess], at_home: bool) -> str:
    if not processes:
        return "none"
    largest = sorted(processes, key=lambda process: -(process.used_bytes or 0))
    texts = []
    for process in largest[:_NAMED]:
        name = _name(process, at_home)
        size = "" if process.used_bytes is None else f" {format_size(process.used_bytes)}"
        texts.append(f"{process.pid}{f' ({name})' if name else ''}{size}")
    more = len(largest) - _NAMED
    return ", ".join(texts) + (f" and {counted(more, 'more', 'more')}" if more > 0 else "")


def _closed(rows: list[LedgerRow], total: int) -> tuple[LedgerRow, ...]:
    """The rows, made to sum to the total: what is missing is unknown, what is too much is cut
    from the least sure.
    """
    missing = total - sum(row.bytes for row in rows)
    if missing > 0:
        note = "free, or held by others: the driver's counters are missing"
        if any(row.kind == "free" for row in rows):
            note = "used, by the driver itself or by a process that it does not list (other containers, ended ones)"
        return (*rows, LedgerRow("unknown", missing, "unknown", note))
    for kind in (*_GIVES_WAY, "pytorch_cached", "pytorch_allocated"):
        for place, row in enumerate(rows):
            cut = min(row.bytes, -missing) if row.kind == kind else 0
            if cut > 0:
                missing += cut
                note = f"{row.note}; " if row.note else ""
                note += f"{format_size(cut)} less than measured, so that the sum closes"
                rows[place] = replace(row, bytes=row.bytes - cut, confidence="inferred", note=note)
    return tuple(rows)


def _visible(pytorch: PyTorch, nvml: Driver | None) -> tuple[Gpu, ...]:
    return nvml.gpus(pytorch.module) if nvml is not None and pytorch.is_nvidia else pytorch.gpus()
