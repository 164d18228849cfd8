"""What is in a process now, without any history: memory, holders, names, segments."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import asdict
from time import monotonic
from typing import Any

from vramlens.attach.inside.forked_copy import ForkedCopy, NoCopy
from vramlens.attach.inside.pauses import Pauses
from vramlens.attach.inside.segments import Segments, segments_summary
from vramlens.capture import torch_api
from vramlens.capture.memory.memory_now import memory
from vramlens.capture.names.tensor_names import NamedTensor, named_tensors
from vramlens.live.heap.search_time import LONG, SearchTime
from vramlens.live.holder_lookup import nearest_holders

_SEARCH_SHARE = 0.5
"""Of the longest pause: the rest is for naming what the search has found."""
NAMES_SHARE = 0.2
"""The same for naming what no model has: the models' own names come without a search."""
_MOST_TENSORS = 20
_CUT_SHORT = "the search was cut short: --pause 5 lets the program stand still for 5 s"
_MOST_HOLDERS = 10
_COPIES = 3
"""Another where one hangs or dies: another thread was in the middle of something."""
_COPY_WITHIN_S = 60.0


def state_now(request: dict[str, Any], pauses: Pauses) -> dict[str, Any]:
    """The parts of the answer: ``memory``, ``holders``, ``names``, ``fragmentation``."""
    now = memory()
    answer: dict[str, Any] = {
        "memory": now.to_dict(),
        "memory_text": str(now),
        "holders": None,
        "names": [],
        "fragmentation": [],
    }
    if not torch_is_whole():
        return answer
    gpu = _initialized_gpu()
    gpu_kind = None if gpu is None else gpu.kind
    tensors = _tensors_of_copy(gpu_kind, pauses)
    if tensors is None:
        tensors = _tensors_here(gpu_kind, pauses, float(request["pause_s"]))
    by_kind = {
        kind: [NamedTensor(**row) for row in rows] for kind, rows in tensors.pop("by_kind").items()
    }
    answer.update(tensors)
    for kind, its_tensors in by_kind.items():
        answer["names"] += _named(kind, its_tensors)
    if gpu is not None:
        with pauses.counted():
            segments: Segments = (gpu.state() or gpu.snapshot()).get("segments", [])
        answer["fragmentation"] = segments_summary(segments, by_kind[gpu.kind])
    return answer


def _initialized_gpu() -> torch_api.Allocator | None:
    gpu = torch_api.connect()
    return gpu if gpu is not None and gpu.is_initialized() else None


def _tensors_of_copy(gpu_kind: str | None, pauses: Pauses) -> dict[str, Any] | None:
    """Holders and names, looked for in copies of the process; None where that cannot be."""
    for _ in range(_COPIES):
        try:
            copy = ForkedCopy(lambda: _tensors(gpu_kind))
            pauses.add(copy.paused_s)
            tensors: dict[str, Any] = copy.answer(_COPY_WITHIN_S)
        except NoCopy:
            continue
        return tensors
    return None


def _tensors_here(gpu_kind: str | None, pauses: Pauses, pause_s: float) -> dict[str, Any]:
    """The same in the program itself, which stands still for each search."""
    with pauses.one():
        tensors = _holders(search_time(pause_s))
    tensors["by_kind"] = {}
    for kind in _kinds(gpu_kind):
        with pauses.one():
            tensors["by_kind"][kind] = _names(kind, NAMES_SHARE * pause_s)
    if any("time limit" in note for note in tensors["holders"]["notes"]):
        tensors["notes"] = [_CUT_SHORT]
    return tensors


def _tensors(gpu_kind: str | None) -> dict[str, Any]:
    """All of it at once: ``holders``, ``holders_text``, and names by kind of device."""
    by_kind = {kind: _names(kind, None) for kind in _kinds(gpu_kind)}
    return {**_holders(LONG), "by_kind": by_kind}


def _kinds(gpu_kind: str | None) -> list[str]:
    """Kinds of devices that tensors are on, the GPUs first."""
    return ["cpu"] if gpu_kind is None else [gpu_kind, "cpu"]


def _holders(allowed: SearchTime) -> dict[str, Any]:
    table = nearest_holders(_MOST_HOLDERS, allowed)
    return {"holders": table.to_dict(), "holders_text": str(table)}


def _names(kind: str, within_s: float | None) -> list[dict[str, Any]]:
    tensors = named_tensors(device_type=kind, search_seconds=within_s)
    return [asdict(tensor) for tensor in tensors]


def search_time(pause_s: float) -> SearchTime:
    """The time that a search may take of a pause."""
    return SearchTime(_SEARCH_SHARE * pause_s, monotonic)


def torch_is_whole() -> bool:
    """True where the program has imported torch, to the end."""
    torch: Any = sys.modules.get("torch")
    spec = getattr(torch, "__spec__", None)
    return torch is not None and not getattr(spec, "_initializing", False)


def _named(kind: str, tensors: list[NamedTensor]) -> list[dict[str, Any]]:
    """For each device of a kind what has a name: bytes by kind of tensor, the largest ones."""
    devices: dict[int, list[NamedTensor]] = {}
    for tensor in tensors:
        devices.setdefault(tensor.device, []).append(tensor)
    parts = []
    for device, its_tensors in sorted(devices.items()):
        sums: Counter[str] = Counter()
        for tensor in its_tensors:
            sums[tensor.kind] += tensor.bytes
        largest = sorted(its_tensors, key=lambda tensor: -tensor.bytes)[:_MOST_TENSORS]
        parts.append(
            {
                "device": kind if device < 0 else f"{kind}:{device}",
                "bytes_by_kind": dict(sums.most_common()),
                "tensors": [
                    {"name": tensor.name, "kind": tensor.kind, "bytes": tensor.bytes}
                    for tensor in largest
                ],
                "named_tensors": len(its_tensors),
            }
        )
    return parts
