"""Replays and tunings as data: the object that ``--json`` prints (docs/json.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramlens.schema import SCHEMA

if TYPE_CHECKING:
    from vramlens.replay import Answer, FirstDifference, Recorded, Tuned, Tuning, WhatIf


def answer_to_json(answer: Answer) -> dict[str, Any]:
    """What ``vramlens replay --json`` prints."""
    return {
        "schema": SCHEMA,
        "source": answer.source,
        "device": answer.device,
        "missing": list(answer.missing),
        "recorded": recorded_to_json(answer.recorded),
        "what_if": [what_if_to_json(row) for row in answer.what_if],
    }


def tuning_to_json(tuning: Tuning) -> dict[str, Any]:
    """What ``vramlens tune --json`` prints."""
    return {
        "schema": SCHEMA,
        "source": tuning.source,
        "device": tuning.device,
        "missing": list(tuning.missing),
        "recorded": recorded_to_json(tuning.recorded),
        "what_if": [_tuned(tuned) for tuned in tuning.tried],
        "best": None if tuning.best is None else _tuned(tuning.best),
        "without_effect": list(tuning.inert),
        "outside_bytes": tuning.outside_bytes,
        "floor_bytes": tuning.floor_bytes,
        "leaked_per_step": tuning.leaked_per_step,
    }


def recorded_to_json(recorded: Recorded) -> dict[str, Any]:
    """The proof."""
    return {
        "conf": recorded.settings.conf,
        "cap_bytes": recorded.limit.bytes,
        "cap_below_bytes": recorded.limit.below_bytes,
        "cap_source": recorded.limit.source,
        "rules": recorded.version.name,
        "exact": recorded.exact,
        "segment_events": recorded.segment_events,
        "segment_events_matched": recorded.segment_events_matched,
        "addresses": recorded.addresses,
        "addresses_matched": recorded.addresses_matched,
        "first_difference": _difference(recorded.first_difference),
        "peak_requested_bytes": recorded.peak_requested_bytes,
        "peak_allocated_bytes": recorded.peak_allocated_bytes,
        "peak_active_bytes": recorded.peak_active_bytes,
        "peak_reserved_bytes": recorded.peak_reserved_bytes,
        "retries": recorded.retries,
        "failed_requests": recorded.failed_requests,
        "private_pools": [list(pool) for pool in recorded.private_pools],
    }


def _difference(difference: FirstDifference | None) -> dict[str, Any] | None:
    if difference is None:
        return None
    return {
        "event": difference.event,
        "recorded": difference.recorded,
        "simulated": difference.simulated,
        "why": difference.why,
    }


def what_if_to_json(row: WhatIf) -> dict[str, Any]:
    """One row of the table."""
    return {
        "conf": row.settings.conf,
        "cap_bytes": row.cap_bytes,
        "peak_allocated_bytes": row.peak_allocated_bytes,
        "peak_reserved_bytes": row.peak_reserved_bytes,
        "low_bytes": row.low_bytes,
        "high_bytes": row.high_bytes,
        "retries": row.retries,
        "failed_requests": row.failed_requests,
        "oom": row.oom,
        "oom_event": row.oom_event,
        "confidence": row.confidence,
        "why": list(row.why),
    }


def _tuned(tuned: Tuned) -> dict[str, Any]:
    return {
        **what_if_to_json(tuned.row),
        "saved_bytes": tuned.saved_bytes,
        "past_failure": tuned.row.past_failure,
        "step_finishes": tuned.step_finishes,
        "smallest_card_bytes": tuned.smallest_card,
        "cards": [
            {"size_bytes": card.size_bytes, "fits": card.fits, "retries": card.row.retries}
            for card in tuned.cards
        ],
    }
