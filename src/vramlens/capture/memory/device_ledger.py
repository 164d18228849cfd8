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
from vramlens.capture.memory.pytorch_memory import PyTorch, PyTorchCounters
from vramlens.ground.verdict import RowConfidence
from vramlens.ground.vocabulary import LedgerKind, LedgerRow
from vramlens.units import counted, format_size

_GIVES_WAY = (
    LedgerKind.THIS_PROCESS_OTHER,
    LedgerKind.OUTSIDE_PYTORCH,
    LedgerKind.OTHER_PROCESSES,
    LedgerKind.NCCL,
    LedgerKind.FREE,
    LedgerKind.DRIVER_RESERVED,
    LedgerKind.PYTORCH_CACHED,
    LedgerKind.PYTORCH_ALLOCATED,
)
"""Which row is cut first where the figures add up to more than the device has."""
_TRIES = 3
_NAMED = 6


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
            index, notes=(f"The GPU's memory could not be read: {error or type(error).__name__}.",)
        )


def ledgers() -> tuple[Ledger, ...]:
    """The ledgers of all GPUs that this process sees, those without a CUDA context here too."""
    try:
        pytorch, (nvml, reason) = PyTorch(), driver()
        return tuple(_ledger_of(gpu, pytorch, nvml, reason) for gpu in _visible(pytorch, nvml))
    except Exception:
        return ()


def rows_of(
    memory: GpuMemory, counters: PyTorchCounters, pids: Iterable[int], *, sees_host_pids: bool
) -> tuple[LedgerRow, ...]:
    """The rows for what the driver and PyTorch say; they sum to ``memory.total_bytes`` and none is
    negative.

    ``pids`` and ``sees_host_pids`` are what ``own_pids`` says.
    """
    kind, exact = LedgerKind.DRIVER_RESERVED, RowConfidence.EXACT
    rows: list[LedgerRow] = []
    outside = memory.total_bytes - memory.free_bytes - (counters.reserved_bytes or 0)
    if memory.reserved_bytes is not None:
        rows.append(
            LedgerRow(kind, memory.reserved_bytes, exact, "kept by the driver and firmware")
        )
        outside -= memory.reserved_bytes
    rows += _pytorch_rows(counters)
    rows += _process_rows(
        _DriverProcesses(memory.processes, tuple(pids), sees_host_pids), outside, counters
    )
    rows.append(LedgerRow(LedgerKind.FREE, memory.free_bytes, exact))
    return _closed(rows, memory.total_bytes)


def _ledger_of(
    gpu: Gpu, pytorch: PyTorch, nvml: Driver | None, reason: str, ask_nccl: bool = True
) -> Ledger:
    memory, counters = _memory_and_counters(gpu, pytorch, nvml)
    notes = [gpu.note, counters.note]
    if ask_nccl:
        counters = pytorch.with_nccl(gpu.index, counters)
    if memory is None:
        if pytorch.is_nvidia:
            notes.insert(0, reason or "The driver reports no numbers for this GPU.")
        memory = pytorch.device_memory(gpu.index, counters)
    base = Ledger(
        device=gpu.index,
        name=gpu.name,
        uuid=gpu.uuid,
        has_context=counters.has_context,
        notes=tuple(filter(None, notes)),
    )
    if memory is None:  # PyTorch's total is without what the driver keeps
        total = getattr(pytorch.properties(gpu.index), "total_memory", None)
        if total is None:
            return base
        rows = _pytorch_rows(counters) + _nccl_rows(counters)
        return replace(base, total_bytes=total, rows=_closed(rows, total))
    pids, sees_host_pids = own_pids()
    return replace(
        base,
        total_bytes=memory.total_bytes,
        rows=rows_of(memory, counters, pids, sees_host_pids=sees_host_pids),
        processes=_ledger_processes(
            _DriverProcesses(memory.processes, pids, sees_host_pids), counters
        ),
    )


def _memory_and_counters(
    gpu: Gpu, pytorch: PyTorch, nvml: Driver | None
) -> tuple[GpuMemory | None, PyTorchCounters]:
    """The driver's figures and PyTorch's, of one moment where that can be had."""
    counters = pytorch.counters(gpu.index)
    for _ in range(_TRIES):  # until nothing was allocated between the two questions
        memory = nvml.memory(gpu) if nvml is not None and pytorch.is_nvidia else None
        before, counters = counters, pytorch.counters(gpu.index)
        if counters == before:
            break
    return memory, counters


def _pytorch_rows(counters: PyTorchCounters) -> list[LedgerRow]:
    allocated, reserved = counters.allocated_bytes, counters.reserved_bytes
    if allocated is None or reserved is None:
        return []
    note = ""
    if counters.pool_bytes:
        note = (
            f"{format_size(counters.pool_bytes)} of what PyTorch reserved is in private pools"
            " (CUDA graphs), which only they can use"
        )
    exact, cached = RowConfidence.EXACT, max(0, reserved - allocated)
    return [
        LedgerRow(LedgerKind.PYTORCH_ALLOCATED, allocated, exact),
        LedgerRow(LedgerKind.PYTORCH_CACHED, cached, exact, note),
    ]


def _nccl_rows(counters: PyTorchCounters, most: int | None = None) -> list[LedgerRow]:
    if counters.nccl_bytes is None:
        return []
    size = counters.nccl_bytes if most is None else min(counters.nccl_bytes, most)
    confidence = _exact_if(counters.nccl_certain and size == counters.nccl_bytes)
    note = "communicators of PyTorch's process groups, as NCCL counts them"
    return [LedgerRow(LedgerKind.NCCL, size, confidence, note)]


@dataclass(frozen=True, slots=True)
class _DriverProcesses:
    """The driver's list of a device's processes (None: it has none), and our numbers."""

    processes: tuple[GpuProcess, ...] | None
    pids: tuple[int, ...]
    sees_host_pids: bool


@dataclass(frozen=True, slots=True)
class _OwnProcess:
    """This process in the driver's list; ``pid`` None: it is not on the device; ``bytes`` None:
    not said.
    """

    pid: int | None
    bytes: int | None
    confidence: RowConfidence


def _own_process(listed: _DriverProcesses, counters: PyTorchCounters) -> _OwnProcess | None:
    """This process among those on the device; None where that cannot be told."""
    if listed.processes is None:
        return None
    by_number = _own_by_number(listed, listed.processes, counters)
    if by_number is not None:
        return by_number
    if not counters.has_context:
        return _OwnProcess(None, 0, _exact_if(listed.sees_host_pids))
    if not listed.sees_host_pids and len(listed.processes) == 1:
        only = listed.processes[0]
        if _has_room_for(only, counters):
            return _OwnProcess(only.pid, only.used_bytes, RowConfidence.INFERRED)
    return None


def _own_by_number(
    listed: _DriverProcesses, processes: tuple[GpuProcess, ...], counters: PyTorchCounters
) -> _OwnProcess | None:
    match = next((process for process in processes if process.pid in listed.pids), None)
    if match is None:
        return None
    fits = _has_room_for(match, counters)
    if listed.sees_host_pids:
        return _OwnProcess(match.pid, match.used_bytes, _exact_if(fits))
    if not fits:  # in a container the same number may be another process of the host
        return None
    is_certain = len(listed.pids) > 1 and match.pid == listed.pids[0]
    return _OwnProcess(match.pid, match.used_bytes, _exact_if(is_certain))


def _has_room_for(process: GpuProcess, counters: PyTorchCounters) -> bool:
    reserved = counters.reserved_bytes or 0
    return process.used_bytes is not None and process.used_bytes >= reserved


def _exact_if(is_certain: bool) -> RowConfidence:
    return RowConfidence.EXACT if is_certain else RowConfidence.INFERRED


def _ledger_processes(
    listed: _DriverProcesses, counters: PyTorchCounters
) -> tuple[LedgerProcess, ...]:
    own_process = _own_process(listed, counters)
    return tuple(
        LedgerProcess(
            pid=process.pid,
            bytes=process.used_bytes,
            name=_name(process, listed.sees_host_pids),
            is_this=None if own_process is None else process.pid == own_process.pid,
        )
        for process in listed.processes or ()
    )


def _process_rows(
    listed: _DriverProcesses, outside: int, counters: PyTorchCounters
) -> list[LedgerRow]:
    """The rows of what is used and not PyTorch's, by process; ``outside`` is how much that is, by
    the driver's own sum.
    """
    own_process = _own_process(listed, counters)
    other_processes = _other_processes(listed, own_process)
    has_all_sizes = all(process.used_bytes is not None for process in other_processes)
    if own_process is None or (own_process.bytes is None and not has_all_sizes):
        return _rows_together(outside, counters, _why_together(listed, other_processes))
    other_bytes = sum(process.used_bytes or 0 for process in other_processes)
    own_bytes, confidence = _own_bytes(own_process, counters, outside - other_bytes)
    nccl = _nccl_rows(counters, own_bytes)
    own_row = LedgerRow(
        kind=LedgerKind.THIS_PROCESS_OTHER,
        bytes=own_bytes - _sum_of(nccl),
        confidence=confidence,
        note=_what_is_other(counters, own_process, bool(nccl)),
    )
    names = _names(other_processes, listed.sees_host_pids)
    is_certain = own_process.confidence == RowConfidence.EXACT or own_process.bytes is None
    certainty = _exact_if(is_certain)
    if not has_all_sizes:
        names += "; by subtraction, because the driver does not report each size"
        other_bytes, certainty = max(other_bytes, outside - own_bytes), RowConfidence.INFERRED
    return [*nccl, own_row, LedgerRow(LedgerKind.OTHER_PROCESSES, other_bytes, certainty, names)]


def _other_processes(listed: _DriverProcesses, own_process: _OwnProcess | None) -> list[GpuProcess]:
    own_pid = None if own_process is None else own_process.pid
    return [process for process in listed.processes or () if process.pid != own_pid]


def _own_bytes(
    own_process: _OwnProcess, counters: PyTorchCounters, remainder: int
) -> tuple[int, RowConfidence]:
    """This process's bytes that are not PyTorch's; ``remainder`` where the driver tells no size."""
    own_bytes = remainder
    if own_process.bytes is not None:
        own_bytes = own_process.bytes - (counters.reserved_bytes or 0)
    if own_bytes < 0:
        return 0, RowConfidence.INFERRED
    return own_bytes, own_process.confidence


def _rows_together(outside: int, counters: PyTorchCounters, why: str) -> list[LedgerRow]:
    """The rows where this process cannot be told from the others."""
    nccl = _nccl_rows(counters, max(0, outside))
    size = max(0, outside - _sum_of(nccl))
    note = f"this process outside PyTorch, and other processes: {why}"
    return [*nccl, LedgerRow(LedgerKind.OUTSIDE_PYTORCH, size, RowConfidence.INFERRED, note)]


def _sum_of(rows: Iterable[LedgerRow]) -> int:
    return sum(row.bytes for row in rows)


def _what_is_other(counters: PyTorchCounters, own_process: _OwnProcess, nccl_is_apart: bool) -> str:
    if own_process.pid is None:
        return "this process has no CUDA context here"
    parts = ["CUDA context", "loaded kernels", "cuBLAS and cuDNN handles"]
    if not nccl_is_apart:
        parts.append("NCCL")
    if counters.reserved_bytes is None:
        parts.append("PyTorch's tensors, which its allocator does not count")
    text = ", ".join(parts)
    if own_process.bytes is None:
        return (
            f"{text}; by subtraction, because the driver does not report the size of this process"
        )
    return (
        f"{text}; process {own_process.pid} is assumed to be this one"
        if own_process.confidence == RowConfidence.INFERRED
        else text
    )


def _why_together(listed: _DriverProcesses, others: list[GpuProcess]) -> str:
    if listed.processes is None:
        return "the driver does not list the processes here"
    if not others:
        return "the driver lists none here"
    names = _names(others, listed.sees_host_pids)
    if any(process.used_bytes is None for process in others):
        return f"the driver lists {names}, without the size of each"
    return (
        f"the driver lists others only: {names}"
        if listed.sees_host_pids
        else f"it is unknown which of {names} is this one"
    )


def _name(process: GpuProcess, sees_host_pids: bool) -> str | None:
    # Inside a container the host's number may be that of somebody else.
    return process_name(process.pid) if sees_host_pids else None


def _names(processes: list[GpuProcess], sees_host_pids: bool) -> str:
    if not processes:
        return "none"
    largest = sorted(processes, key=lambda process: -(process.used_bytes or 0))
    texts = []
    for process in largest[:_NAMED]:
        name = _name(process, sees_host_pids)
        size = "" if process.used_bytes is None else f" {format_size(process.used_bytes)}"
        texts.append(f"{process.pid}{f' ({name})' if name else ''}{size}")
    more = len(largest) - _NAMED
    return ", ".join(texts) + (f" and {counted(more, 'more', 'more')}" if more > 0 else "")


def _closed(rows: list[LedgerRow], total: int) -> tuple[LedgerRow, ...]:
    """The rows, made to sum to the total: what is missing is unknown, what is too much is cut
    from the least sure.
    """
    missing = total - _sum_of(rows)
    if missing > 0:
        note = "free or used by others (the driver's counters are missing)"
        if any(row.kind == LedgerKind.FREE for row in rows):
            note = (
                "used by the driver itself or by a process that it does not list (in another "
                "container, or already ended)"
            )
        unknown = LedgerRow(LedgerKind.UNKNOWN, missing, RowConfidence.UNKNOWN, note)
        return (*rows, unknown)
    for kind in _GIVES_WAY:
        for place, row in enumerate(rows):
            cut = min(row.bytes, -missing) if row.kind == kind else 0
            if cut > 0:
                missing += cut
                note = f"{row.note}; " if row.note else ""
                note += f"{format_size(cut)} less than measured, so that the numbers add up"
                rows[place] = replace(
                    row, bytes=row.bytes - cut, confidence=RowConfidence.INFERRED, note=note
                )
    return tuple(rows)


def _visible(pytorch: PyTorch, nvml: Driver | None) -> tuple[Gpu, ...]:
    return nvml.gpus(pytorch.module) if nvml is not None and pytorch.is_nvidia else pytorch.gpus()
