"""An explanation as the JSON object that docs/json.md fixes, key by key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vramlens.report.finding_json import finding_to_json, place_to_json
from vramlens.schema import SCHEMA

if TYPE_CHECKING:
    from vramlens.analyses.explanation import Explanation, OomVerdict, Peak, RecordingFacts
    from vramlens.analyses.failure.largest_use import LargestUse
    from vramlens.analyses.failure.need import Need
    from vramlens.analyses.memory.fragmentation import Fragmentation
    from vramlens.analyses.memory.heap import Heap


def to_json(explanation: Explanation) -> dict[str, Any]:
    """The answer as data: every key of the contract, null or [] where the input cannot tell."""
    return {
        "schema": SCHEMA,
        "recording": _recording(explanation.recording),
        "peak": _peak(explanation.peak),
        "heap": _heap(explanation.heap, explanation.at),
        "oom": _oom(explanation.oom),
        "steps": {
            "count": explanation.steps.count,
            "source": explanation.steps.source,
            "peak_bytes": list(explanation.steps.peak_bytes),
        },
        "fragmentation": _fragmentation(explanation.fragmentation),
        "leaks": [leak.to_dict() for leak in explanation.leaks],
        "ledger": [
            {
                "kind": row.kind,
                "bytes": row.bytes,
                "confidence": row.confidence,
                "note": row.note or None,
            }
            for row in explanation.ledger
        ],
        "findings": [finding_to_json(finding) for finding in explanation.findings],
    }


def _recording(facts: RecordingFacts) -> dict[str, Any]:
    return {
        "source": facts.source,
        "torch": facts.torch,
        "device": facts.device,
        "events": facts.events,
        "allocations": facts.allocations,
        "complete": facts.complete,
        "missing": list(facts.missing),
        "settings": _plain(facts.settings),
        **_made(facts),
    }


_SAID = (
    "vramlens", "cuda", "driver", "python", "platform", "trigger", "step", "host", "pid", "rank", "local_rank",
    "world_size", "max_events", "started_us", "written_us", "dump_seconds",
)  # fmt: skip


def _made(facts: RecordingFacts) -> dict[str, Any]:
    """What only a recording that vramlens made knows of its making."""
    meta = facts.meta
    return {
        **{name: getattr(meta, name) for name in _SAID},
        "command": list(meta.command),
        "module_marks": None if meta.is_empty else meta.module_marks,
        "overwritten": [
            {"device": ring.device, "first_event_us": ring.first_event_us, "lost_us": ring.lost_us}
            for ring in facts.overwritten
        ],
        "named_tensors": facts.named_tensors,
        "samples": facts.samples,
        "members": list(facts.members),
    }


def _plain(value: object) -> Any:
    """A value that JSON has a word for; what it has none for (bytes, infinity) becomes text or
    null.
    """
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _peak(peak: Peak | None) -> dict[str, Any] | None:
    if peak is None:
        return None
    return {
        "device": peak.device,
        "requested_bytes": peak.requested_bytes,
        "allocated_bytes": peak.allocated_bytes,
        "active_bytes": peak.active_bytes,
        "reserved_bytes": peak.reserved_bytes,
        "exact": list(peak.exact),
        "event": peak.heap.event,
        "step": peak.heap.step,
        **_tables(peak.heap),
    }


def _heap(heap: Heap | None, at: str) -> dict[str, Any] | None:
    if heap is None:
        return None
    return {
        "at": at,
        "event": heap.event,
        "device": heap.device,
        "step": heap.step,
        "requested_bytes": heap.requested_bytes,
        **_tables(heap),
    }


def _tables(heap: Heap) -> dict[str, Any]:
    return {
        "unattributed_bytes": heap.unattributed_bytes,
        "named_bytes": heap.named_bytes,
        "by_line": [
            {
                **place_to_json(line.place),
                "bytes": line.bytes,
                "allocations": line.allocations,
                "names": list(line.names),
            }
            for line in heap.by_line
        ],
        "by_code": [
            {**place_to_json(row.place), "bytes": row.bytes, "allocations": row.allocations}
            for row in heap.by_code
        ],
        "by_category": {
            name: category_bytes.bytes for name, category_bytes in heap.by_category.items()
        },
        "category_verdicts": {
            name: category_bytes.verdict for name, category_bytes in heap.by_category.items()
        },
        "by_phase": dict(heap.by_phase),
        "by_module": _named(heap.by_module),
        "by_region": _named(heap.by_region),
    }


def _named(sizes: Mapping[str, int]) -> list[dict[str, Any]]:
    return [{"name": name, "bytes": size} for name, size in sizes.items()]


def _oom(oom: OomVerdict | None) -> dict[str, Any] | None:
    if oom is None:
        return None
    return {
        "event": oom.event,
        "device": oom.device,
        "count": oom.count,
        "requested_bytes": oom.requested_bytes,
        "tried_bytes": oom.tried_bytes,
        "allocated_bytes": oom.allocated_bytes,
        "reserved_bytes": oom.reserved_bytes,
        "free_bytes": oom.free_bytes,
        "largest_free_bytes": oom.largest_free_bytes,
        "limit_bytes": oom.limit_bytes,
        "wall": oom.wall,
        "cause": oom.cause,
        **place_to_json(oom.place),
        "library": None
        if oom.library is None
        else {**place_to_json(oom.library), "source": oom.library_source},
        "largest_use": _largest_use(oom.largest_use),
        "need": _need(oom.need),
        "settings": [
            {
                "conf": row.conf,
                "lives": row.lives,
                "dies_after_bytes": row.dies_after_bytes,
                "confidence": row.confidence,
            }
            for row in oom.settings
        ],
    }


def _largest_use(use: LargestUse | None) -> dict[str, Any] | None:
    if use is None:
        return None
    return {
        **place_to_json(use.place),
        "bytes": use.bytes,
        "allocations": use.allocations,
        "of_bytes": use.of_bytes,
    }


def _need(need: Need | None) -> dict[str, Any] | None:
    if need is None:
        return None
    return {
        "peak_reserved_bytes": need.peak_reserved_bytes,
        "low_bytes": need.low_bytes,
        "high_bytes": need.high_bytes,
        "basis": need.basis,
        "scale": need.scale,
        "done_share": need.done_share,
        "confidence": need.confidence,
        "limit_bytes": need.limit_bytes,
        "floor_bytes": need.floor_bytes,
        "reason": need.reason or None,
    }


def _fragmentation(found: Fragmentation | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "event": found.event,
        "reserved_bytes": found.reserved_bytes,
        "free_bytes": found.free_bytes,
        "largest_free_bytes": found.largest_free_bytes,
        "pinned_by": [
            {
                "file": pin.place.file if pin.place else None,
                "line": pin.place.line if pin.place else None,
                "bytes": pin.bytes,
                "blocks": pin.blocks,
            }
            for pin in found.pinned_by
        ],
    }
