"""A comparison of ranks as data: the contract of docs/json.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramlens.report.finding_json import finding_to_json, place_to_json
from vramlens.schema import SCHEMA

if TYPE_CHECKING:
    from vramlens.ranks import Comparison, RankDifference, RankSummary
    from vramlens.ranks.flights.collectives import CollectiveProblem
    from vramlens.ranks.rank_failures import FailedRank


def comparison_to_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as one JSON object."""
    return {
        "schema": SCHEMA,
        "by_device": comparison.by_device,
        "ranks": [_rank(rank) for rank in comparison.ranks],
        "missing": list(comparison.missing),
        "cohorts": {
            "source": comparison.cohorts.source,
            "ranks": [list(members) for members in comparison.cohorts.members],
        },
        "differences": [_difference(difference) for difference in comparison.differences],
        "collectives": [_collective(call) for call in comparison.collectives],
        "failures": [_failure(rank) for rank in comparison.failures.failed],
        "victims": list(comparison.failures.victims),
        "notes": list(comparison.notes),
        "findings": [finding_to_json(finding) for finding in comparison.findings],
    }


def _rank(rank: RankSummary) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "device": None if rank.device < 0 else rank.device,
        "host": rank.host,
        "source": rank.source,
        "peak_requested_bytes": rank.peak_requested_bytes,
        "peak_allocated_bytes": rank.peak_allocated_bytes,
        "peak_reserved_bytes": rank.peak_reserved_bytes,
        "steps": len(rank.step_peaks),
        "ledger": [{"kind": kind, "bytes": size} for kind, size in rank.ledger],
    }


def _difference(difference: RankDifference) -> dict[str, Any]:
    return {
        "ranks": list(difference.ranks),
        "cause": difference.cause,
        "bytes": difference.bytes,
        **place_to_json(difference.place),
        "verdict": difference.verdict,
        "title": difference.title,
        "evidence": list(difference.evidence),
        "fix": difference.fix,
    }


def _collective(call: CollectiveProblem) -> dict[str, Any]:
    return {
        "rank": call.rank,
        "group": call.group,
        "seq": call.seq,
        "name": call.name,
        "state": call.state,
        **place_to_json(call.place),
        "problem": call.problem,
        "suspected": call.suspected,
    }


def _failure(rank: FailedRank) -> dict[str, Any]:
    request = rank.failure
    return {
        "rank": rank.rank,
        "time_us": rank.time_us,
        "after_s": rank.after_s,
        "step": None if request is None else request.step,
        "requested_bytes": None if request is None else request.requested_bytes,
        "error": None if rank.error is None else rank.error.message,
        "follows": rank.follows,
        **place_to_json(rank.place),
        "waiting_in": rank.waiting_in,
    }
