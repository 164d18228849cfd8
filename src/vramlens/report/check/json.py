"""A check as data: the object that ``vramlens check --format json`` prints (docs/json.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramlens.report.finding_json import finding_to_json
from vramlens.schema import SCHEMA

if TYPE_CHECKING:
    from vramlens.analyses.budget.broken_limits import Result
    from vramlens.analyses.budget.budget import Check


def check_to_json(check: Check) -> dict[str, Any]:
    """What ``vramlens check --format json`` prints."""
    return {
        "schema": SCHEMA,
        "source": check.source,
        "budget": check.budget or None,  # limits of the command line alone
        "passed": check.passed,
        "results": [_result(result) for result in check.results],
        "findings": [finding_to_json(finding) for finding in check.findings],
        "ranks": list(check.ranks),
        "notes": list(check.notes),
    }


def _result(result: Result) -> dict[str, Any]:
    return {
        "scope": result.limit.scope,
        "limit": result.limit.value,
        "value": result.value,
        "passed": result.passed,
        "kind": result.limit.kind,
        "line": result.limit.line,
        "why": result.why or None,
        "rank": result.rank,
    }
