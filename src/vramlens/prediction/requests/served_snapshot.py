"""A snapshot like PyTorch's own, of requests that the replayed allocator served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vramlens.ground.allocator_sizes import SMALL_SEGMENT
from vramlens.prediction.requests.request_log import FIRST_POOL, RequestLog
from vramlens.replay.settings import Settings
from vramlens.trace import Action
from vramlens.units import MIB

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NAMES = {
    Action.ALLOC: "alloc",
    Action.FREE_REQUESTED: "free_requested",
    Action.FREE_COMPLETED: "free_completed",
    Action.SEGMENT_ALLOC: "segment_alloc",
    Action.SEGMENT_FREE: "segment_free",
    Action.SEGMENT_MAP: "segment_map",
    Action.SEGMENT_UNMAP: "segment_unmap",
}


def snapshot_of(
    log: RequestLog, rows: NDArray[np.int64], events: Any, settings: Settings
) -> dict[str, Any]:
    """The allocator's own trace of the run, and its state at the end, as
    ``torch.cuda.memory._snapshot`` gives them.

    Args:
        log: the requests.
        rows: the row that each replayed event is about.
        events: what the allocator did (``Replay.log``).
        settings: under which.
    """
    trace: list[dict[str, Any]] = []
    segments: dict[int, dict[str, Any]] = {}
    live: dict[int, tuple[int, list[Any]]] = {}
    columns = (
        events[f"log_{name}"].tolist() for name in ("event", "action", "address", "size", "stream")
    )
    for number, (event, action, address, size, stream) in enumerate(zip(*columns, strict=True)):
        if action == Action.OOM:
            continue  # a workspace that the library does without; a failure is the caller's to tell
        row = int(rows[event])
        frames = (
            log.stack_table.stacks[log.stacks[row]]
            if row >= 0 and action != Action.FREE_COMPLETED
            else []
        )
        trace.append(
            {
                "action": _NAMES[action],
                "addr": address,
                "size": size,
                "stream": stream,
                "time_us": number + 1,
                "compile_context": "N/A",
                "user_metadata": log.marks[row] if row >= 0 else "",
                "frames": frames,
            }
        )
        if action == Action.ALLOC:
            live[address] = size, frames
        elif action == Action.FREE_COMPLETED:
            live.pop(address, None)
        elif action == Action.SEGMENT_ALLOC:
            segments[address] = {
                "size": size,
                "stream": stream,
                "frames": frames,
                "expandable": False,
            }
        elif action == Action.SEGMENT_FREE:
            segments.pop(address, None)
        elif action in (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP):
            _map(segments, address, size, stream, is_mapped=action == Action.SEGMENT_MAP)
    return {
        "segments": _segments(segments, live),
        "device_traces": [trace],
        "allocator_settings": _recorded_settings(settings),
        "external_annotations": [],
    }


def _map(
    segments: dict[int, dict[str, Any]], address: int, size: int, stream: int, *, is_mapped: bool
) -> None:
    """A range of an expandable segment comes or goes; ranges that touch are one segment."""
    if is_mapped:
        before = next(
            (a for a, s in segments.items() if s["expandable"] and a + s["size"] == address), None
        )
        if before is not None:
            segments[before]["size"] += size
        else:
            segments[address] = {"size": size, "stream": stream, "frames": [], "expandable": True}
        return
    for begin, segment in list(segments.items()):
        end = begin + segment["size"]
        if segment["expandable"] and begin <= address < end:
            del segments[begin]
            if begin < address:
                segments[begin] = {**segment, "size": address - begin}
            if address + size < end:
                segments[address + size] = {**segment, "size": end - address - size}


def _segments(
    segments: dict[int, dict[str, Any]], live: dict[int, tuple[int, list[Any]]]
) -> list[dict[str, Any]]:
    """The segments at the end with their blocks, in order of address."""
    addresses = sorted(live)
    shown = []
    for begin, segment in sorted(segments.items()):
        end = begin + segment["size"]
        inside = (
            addresses[np.searchsorted(addresses, begin) : np.searchsorted(addresses, end)]
            if addresses
            else []
        )
        blocks = _blocks(begin, end, inside, live)
        taken = [block for block in blocks if block["state"] != "inactive"]
        total = sum(block["size"] for block in taken)
        is_small = segment["size"] == SMALL_SEGMENT
        shown.append(
            {
                "device": 0,
                "address": begin,
                "total_size": segment["size"],
                "allocated_size": total,
                "active_size": total,
                "requested_size": sum(block["requested_size"] for block in taken),
                "stream": segment["stream"],
                "segment_type": "small" if is_small else "large",
                "segment_pool_id": (0, max(0, segment["stream"] - FIRST_POOL + 1)),
                "is_expandable": segment["expandable"],
                "frames": segment["frames"],
                "blocks": blocks,
            }
        )
    return shown


def _blocks(
    begin: int, end: int, inside: list[int], live: dict[int, tuple[int, list[Any]]]
) -> list[dict[str, Any]]:
    """The blocks of one segment; what follows a live block by up to 1 MiB in a large segment is
    its own.
    """
    blocks: list[dict[str, Any]] = []
    is_small = end - begin == SMALL_SEGMENT
    position = begin
    for place, address in enumerate(inside):
        if address > position:
            blocks.append(_free_block(position, address - position))
        requested, frames = live[address]
        size = -(-requested // 512) * 512
        following = inside[place + 1] if place + 1 < len(inside) else end
        if not is_small and 0 < following - address - size <= MIB:
            size = following - address
        blocks.append(
            {"address": address, "size": size, "requested_size": requested, "state": "active_allocated",
             "frames": frames}
        )  # fmt: skip
        position = address + size
    if position < end:
        blocks.append(_free_block(position, end - position))
    return blocks


def _free_block(address: int, size: int) -> dict[str, Any]:
    return {
        "address": address,
        "size": size,
        "requested_size": 0,
        "state": "inactive",
        "frames": [],
    }


def _recorded_settings(settings: Settings) -> dict[str, Any]:
    unlimited = settings.max_split_size == 2**64 - 1
    return {
        "PYTORCH_CUDA_ALLOC_CONF": settings.conf,
        "max_split_size": -1 if unlimited else settings.max_split_size,
        "garbage_collection_threshold": float(settings.garbage_collection_threshold),
        "expandable_segments": settings.expandable_segments,
        "roundup_power2_divisions": {
            str(1 << slot): divisions
            for slot, divisions in enumerate(settings.roundup_power2_divisions)
        },
    }
