"""What is in a process now, without any history: memory, holders, names, segments."""

from __future__ import annotations

import sys
from collections import Counter
from time import monotonic
from typing import Any

from vramlens.attach.inside.pauses import Pauses
from vramlens.attach.inside.segments import Segments, segments_summary
from vramlens.capture import torch_api
from vramlens.capture.memory.memory_now import memory
from vramlens.capture.names.tensor_names import NamedTensor, named_tensors
from vramlens.live.heap.search import SearchTime
from vramlens.live.holder_lookup import nearest_holders

_SEARCH_SHARE = 0.5
"""Of the longest pause: the rest is for naming what the search has found."""
NAMES_SHARE = 0.2
"""The same for naming what no model has: the models' own names come without a search."""
_MOST_TENSORS = 20
_CUT_SHORT = "the search was cut short: --pause 5 lets the program stand still for 5 s"
_MOST_HOLDERS = 10


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
    with pauses.one():
        table = nearest_holders(_MOST_HOLDERS, search_time(float(request["pause_s"])))
    answer["holders"] = table.to_dict()
    answer["holders_text"] = str(table)
    if any("time limit" in note for note in table.notes):
        answer["notes"] = [_CUT_SHORT]
    gpu = torch_api.connect()
    kinds = ["cpu"]
    if gpu is not None and gpu.is_initialized():
        kinds.insert(0, gpu.kind)
    by_kind: dict[str, list[NamedTensor]] = {}
    for kind in kinds:
        with pauses.one():
            by_kind[kind] = named_tensors(
                device_type=kind, search_seconds=NAMES_SHARE * float(request["pause_s"])
            )
        answer["names"] += _named(kind, by_kind[kind])
    if gpu is not None and gpu.is_initialized():
        with pauses.counted():
            segments: Segments = (gpu.state() or gpu.snapshot()).get("segments", [])
        answer["fragmentation"] = segments_summary(segments, by_kind[gpu.kind])
    return answer


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
