"""A comparison of ranks as data: the contract of docs/design.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramlens.report.finding_json import finding_to_json, place_to_json
from vramlens.schema import SCHEMA

if TYPE_CHECKING:
    from vramlens.ranks import Comparison


def comparison_to_json(found: Comparison) -> dict[str, Any]:
    """The comparison as one JSON object."""
    return {
        "schema": SCHEMA,
        "by_device": found.by_device,
        "ranks": [
            {
                "rank": one.rank,
                "device": None if one.device < 0 else one.device,
                "host": one.host,
                "source": one.source,
                "peak_requested_bytes": one.peak_requested_bytes,
                "peak_allocated_bytes": one.peak_allocated_bytes,
                "peak_reserved_bytes": one.peak_reserved_bytes,
                "steps": len(one.step_peaks),
                "ledger": [{"kind": kind, "bytes": size} for kind, size in one.ledger],
            }
            for one in found.ranks
        ],
        "missing": list(found.missing),
        "cohorts": {
            "source": found.cohorts.source,
            "ranks": [list(members) for members in found.cohorts.members],
        },
        "differences": [
            {
                "ranks": list(one.ranks),
                "cause": one.cause,
                "bytes": one.bytes,
                **place_to_json(one.place),
                "verdict": one.verdict,
                "title": one.title,
                "evidence": list(one.evidence),
                "fix": one.fix,
            }
            for one in found.differences
        ],
        "collectives": [
            {
                "rank": one.rank,
                "group": one.group,
                "seq": one.seq,
                "name": one.name,
                "state": one.state,
                **place_to_json(one.place),
                "problem": one.problem,
                "suspected": one.suspected,
            }
            for one in found.collectives
        ],
        "failures": [
            {
                "rank": one.rank,
                "time_us": one.time_us,
                "after_s": one.after_s,
                "step": None if one.failure is None else one.failure.step,
                "requested_bytes": None if one.failure is None else one.failure.requested_bytes,
                "error": None if one.error is None else one.error.message,
                "follows": one.follows,
                **place_to_json(one.place),
                "waiting_in": one.waiting_in,
            }
            for one in found.failures.failed
        ],
        "victims": list(found.failures.victims),
        "notes": list(found.notes),
        "findings": [finding_to_json(one) for one in found.findings],
    }
