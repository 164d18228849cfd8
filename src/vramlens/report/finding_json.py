"""A finding and a place as JSON: the parts that the answers of all verbs share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vramlens.analyses.finding import Finding, Place


def finding_to_json(finding: Finding) -> dict[str, Any]:
    """A finding, key by key."""
    return {
        "id": finding.id,
        "verdict": finding.verdict,
        "title": finding.title,
        "bytes": finding.bytes,
        **place_to_json(finding.place),
        "evidence": list(finding.evidence),
        "fix": finding.fix,
    }


def place_to_json(place: Place | None) -> dict[str, Any]:
    """File, line and function; null where there is no place, and where the recording does not
    name one of them.
    """
    if place is None:
        return {"file": None, "line": None, "function": None}
    return {"file": place.file, "line": place.line or None, "function": place.function or None}
