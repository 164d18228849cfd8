"""What is in a process now, without any history: memory, holders, names, segments."""

from __future__ import annotations

import sys
from dataclasses import asdict
from time import monotonic
from typing import Any

from vramlens.attach.inside.forked_copy import ForkedCopy, NoCopy
from vramlens.attach.inside.pauses import Pauses
from vramlens.attach.inside.segments import Segments, segments_summary
from vramlens.attach.inside.tensors_by_device import tensors_by_device
from vramlens.capture import torch_api
from vramlens.capture.memory.memory_now import memory
from vramlens.capture.names.tensor_names import NamedTensor, named_tensors
from vramlens.live.heap.search_time import LONG, SearchTime
from vramlens.live.holder_table import HeldNow, nearest_holders

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
    search = _TensorSearch(None if gpu is None else gpu.kind, int(request.get("top") or 0))
    tensors = search.in_copy(pauses)
    if tensors is None:
        tensors = search.here(pauses, float(request["pause_s"]))
    gpu_names = [NamedTensor(**row) for row in tensors.pop("gpu_names")]
    answer.update(tensors)
    if gpu is not None:
        with pauses.counted():
            segments: Segments = (gpu.state() or gpu.snapshot()).get("segments", [])
        answer["fragmentation"] = segments_summary(segments, gpu_names)
    return answer


def _initialized_gpu() -> torch_api.Allocator | None:
    gpu = torch_api.connect()
    return gpu if gpu is not None and gpu.is_initialized() else None


class _TensorSearch:
    """The search for what is in tensors, who holds it, and what it is called."""

    def __init__(self, gpu_kind: str | None, top: int) -> None:
        """Prepares.

        Args:
            gpu_kind: the kind of GPU that the program uses; None without.
            top: how many rows each table gets; 0 for as many as usual.
        """
        self._gpu_kind = gpu_kind
        self._kinds = ["cpu"] if gpu_kind is None else [gpu_kind, "cpu"]
        self._top = top
        self._most_holders = top or _MOST_HOLDERS
        self._most_tensors = max(top, _MOST_TENSORS)

    def in_copy(self, pauses: Pauses) -> dict[str, Any] | None:
        """The parts of the answer, looked for in copies of the process; None where that cannot
        be.
        """
        for _ in range(_COPIES):
            try:
                copy = ForkedCopy(self._all_at_once)
                pauses.add(copy.paused_s)
                tensors: dict[str, Any] = copy.answer(_COPY_WITHIN_S)
            except NoCopy:
                continue
            return tensors
        return None

    def here(self, pauses: Pauses, pause_s: float) -> dict[str, Any]:
        """The same in the program itself, which stands still for each search."""
        with pauses.one():
            holders_now = self._held(search_time(pause_s))
        named = {}
        for kind in self._kinds:
            with pauses.one():
                named[kind] = named_tensors(device_type=kind, search_seconds=NAMES_SHARE * pause_s)
        tensors = self._parts(holders_now, named)
        if any("time limit" in note for note in holders_now.table.notes):
            tensors["notes"] = [_CUT_SHORT]
        return tensors

    def _all_at_once(self) -> dict[str, Any]:
        named = {kind: named_tensors(device_type=kind) for kind in self._kinds}
        return self._parts(self._held(LONG), named)

    def _held(self, allowed: SearchTime) -> HeldNow:
        return nearest_holders(self._most_holders, allowed, most_looks=self._most_tensors)

    def _parts(self, held: HeldNow, named: dict[str, list[NamedTensor]]) -> dict[str, Any]:
        """The parts of the answer, and ``gpu_names``."""
        return {
            "holders": held.table.to_dict(),
            "holders_text": held.table.text("--top {} shows more"),
            "names": tensors_by_device(held, named, self._most_tensors),
            "top": self._top,
            "gpu_names": [asdict(tensor) for tensor in named.get(self._gpu_kind or "", ())],
        }


def search_time(pause_s: float) -> SearchTime:
    """The time that a search may take of a pause."""
    return SearchTime(_SEARCH_SHARE * pause_s, monotonic)


def torch_is_whole() -> bool:
    """True where the program has imported torch, to the end."""
    torch: Any = sys.modules.get("torch")
    spec = getattr(torch, "__spec__", None)
    return torch is not None and not getattr(spec, "_initializing", False)
