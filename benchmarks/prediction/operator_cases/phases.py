"""One case, run: without gradients, then forward, then backward, each measured on its own."""

from __future__ import annotations

import gc
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_leaves

from operator_cases.case import Case, Tensors

_LEAST_REQUEST, _MOST_REQUESTS = 16 << 10, 60
MEASURED_TURN = 2
"""The first turn brings what lives on: cuBLAS' workspaces, dropout's states, compiled kernels."""


class Meter(Protocol):
    """Measures what happens between its beginning and its end."""

    def begin(self) -> None: ...

    def end(self) -> dict[str, Any]: ...


class NoMeter:
    """Measures nothing: cases that are run on the CPU to see that they are valid."""

    def begin(self) -> None: ...

    def end(self) -> dict[str, Any]:
        return {}


class CudaMeter:
    """What PyTorch's allocator says: requested bytes, at the peak and kept, and the requests."""

    def begin(self) -> None:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.memory._record_memory_history(
            "all", context=None, max_entries=4000, clear_history=True
        )
        torch.cuda.reset_peak_memory_stats()
        self._before = self._figures()

    def end(self) -> dict[str, Any]:
        torch.cuda.synchronize()
        after = self._figures()
        events = torch.cuda.memory._snapshot()["device_traces"][0]
        torch.cuda.memory._record_memory_history(None)
        requests = [
            event["size"] if event["action"] == "alloc" else -event["size"]
            for event in events
            if event["action"] in ("alloc", "free_requested")
        ]
        return {
            "peak": after[0] - self._before[1],
            "kept": after[1] - self._before[1],
            "allocated_peak": after[2] - self._before[3],
            "requests": shortened(requests),
        }

    @staticmethod
    def _figures() -> tuple[int, int, int, int]:
        stats = torch.cuda.memory_stats()
        return (
            stats["requested_bytes.all.peak"],
            stats["requested_bytes.all.current"],
            stats["allocated_bytes.all.peak"],
            stats["allocated_bytes.all.current"],
        )


class PredictedMeter:
    """The same figures of a prediction's log, with the least and most where values decide."""

    def __init__(self, log: Any) -> None:
        self._log = log

    def begin(self) -> None:
        gc.collect()
        self._start = len(self._log.events)

    def end(self) -> dict[str, Any]:
        log, events = self._log, self._log.events[self._start :]
        sizes = log.sizes
        peak, kept = _peak_and_kept(events, lambda row: sizes[row])
        answer = {
            "peak": peak,
            "kept": kept,
            "requests": shortened([_signed(kind, sizes[row]) for kind, row in events if row >= 0]),
        }
        if any(row in log.bounds for _, row in events):
            answer["low"], answer["high"] = (
                _peak_and_kept(events, lambda row: log.bounds.get(row, (sizes[row],) * 2)[side])[0]  # noqa: B023
                for side in (0, 1)
            )
        return answer


def _peak_and_kept(events: list[tuple[int, int]], size_of: Any) -> tuple[int, int]:
    live = peak = 0
    for kind, row in events:
        if row >= 0:
            live += _signed(kind, size_of(row))
            peak = max(peak, live)
    return peak, live


def _signed(kind: int, size: int) -> int:
    return size if kind == 0 else -size


def shortened(requests: list[int]) -> list[int]:
    """The first requests of some size, in order; what is given back is negative."""
    return [size for size in requests if abs(size) >= _LEAST_REQUEST][:_MOST_REQUESTS]


def figures_of(case: Case, device: str, meter: Meter, turns: int = MEASURED_TURN) -> dict[str, Any]:
    """What each phase of a case takes in the last of some turns; ``error`` where it failed."""
    figures: dict[str, Any] = {}
    for _ in range(turns):
        figures = {}
        try:
            _run(case, device, meter, figures)
        except BaseException as error:
            first_line = str(error).strip().partition("\n")[0][:160]
            figures["error"] = f"{type(error).__name__}: {first_line}"
            if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
                raise
            break
        finally:
            gc.collect()
    return figures


def _run(case: Case, device: str, meter: Meter, figures: dict[str, Any]) -> None:
    torch.manual_seed(0)
    function, *args = case.build(Tensors(device, case.dtype))
    with torch.no_grad():
        figures["inference"] = _measured(meter, function, args)[1]
    if not any(tensor.requires_grad for tensor in _tensors((function, args))):
        return
    result, figures["forward"] = _measured(meter, function, args)
    roots = [tensor for tensor in _tensors(result) if tensor.requires_grad]
    gradients = [torch.ones_like(tensor) for tensor in roots]
    if roots:
        figures["backward"] = _measured(meter, torch.autograd.backward, (roots, gradients))[1]


def _measured(meter: Meter, function: Any, args: Any) -> tuple[Any, dict[str, Any]]:
    meter.begin()
    result = function(*args)
    return result, meter.end()


def _tensors(values: Any) -> list[Any]:
    leaves = []
    for leaf in tree_leaves(values):
        leaves += list(leaf.parameters()) if isinstance(leaf, torch.nn.Module) else [leaf]
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
