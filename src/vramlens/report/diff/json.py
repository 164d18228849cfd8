"""A diff as data: the object that ``vramlens diff --json`` prints (docs/json.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramlens.report.finding_json import finding_to_json, place_to_json
from vramlens.schema import SCHEMA

if TYPE_CHECKING:
    from vramlens.analyses.compare.compared_run import Run
    from vramlens.analyses.compare.run_diff import CounterChange, Diff, LineChange


def diff_to_json(diff: Diff) -> dict[str, Any]:
    """What ``vramlens diff --json`` prints."""
    return {
        "schema": SCHEMA,
        "before": _run(diff.before, diff.befores),
        "after": _run(diff.after, diff.afters),
        "peak_bytes_change": diff.peak_bytes_change,
        "bytes_per_step_before": diff.growth_before,
        "bytes_per_step_after": diff.growth_after,
        "headroom_bytes": diff.headroom_bytes,
        "headroom_exact": diff.headroom_exact,
        "counters": {name: _counter(counter) for name, counter in diff.counters.items()},
        "by_line": [_line(line) for line in diff.by_line],
        "unattributed_bytes_change": diff.unattributed_bytes,
        "elsewhere": [_line(line) for line in diff.elsewhere],
        "by_module": [{"name": name, "bytes_change": change} for name, change in diff.by_module],
        "by_step": [
            {"step": row.step, "before_bytes": row.before_bytes, "after_bytes": row.after_bytes}
            for row in diff.by_step
        ],
        "aligned_lines": diff.aligned_lines,
        "moved_lines": diff.moved_lines,
        "overlap": {
            "different_programs": diff.unrelated,
            "lines": _shares(diff.overlap.lines),
            "activations": _shares(diff.overlap.activations),
            "modules": _shares(diff.overlap.modules),
        },
        "differences": [
            {
                "name": difference.name,
                "before": difference.before,
                "after": difference.after,
                "text": difference.words,
            }
            for difference in diff.others
        ],
        "worse": list(diff.worse()),
        "findings": [finding_to_json(finding) for finding in diff.findings],
    }


def _shares(shares: tuple[float, float] | None) -> dict[str, float] | None:
    return None if shares is None else {"before": shares[0], "after": shares[1]}


def _run(run: Run, runs: tuple[Run, ...]) -> dict[str, Any]:
    peak, facts, failure = run.explanation.peak, run.explanation.recording, run.failure
    return {
        "source": run.source,
        "sources": [repeated.source for repeated in runs],
        "torch": facts.torch,
        "device_name": facts.device,
        "device": run.device,
        "complete": facts.complete,
        "steps": run.explanation.steps.count,
        "failed": failure is not None,
        "failed_at_event": failure.event if failure is not None else None,
        "requested_bytes": peak.requested_bytes if peak is not None else None,
        "allocated_bytes": peak.allocated_bytes if peak is not None else None,
        "active_bytes": peak.active_bytes if peak is not None else None,
        "reserved_bytes": peak.reserved_bytes if peak is not None else None,
        "exact": list(peak.exact) if peak is not None else [],
        "bytes_per_step": run.growth,
    }


def _counter(counter: CounterChange) -> dict[str, Any]:
    return {
        "before_bytes": counter.before_bytes,
        "after_bytes": counter.after_bytes,
        "bytes_change": counter.change_bytes,
        "noise_bytes": counter.noise_bytes,
        "beyond_noise": counter.certain,
    }


def _line(line: LineChange) -> dict[str, Any]:
    return {
        **place_to_json(line.place),
        "bytes_change": line.change_bytes,
        "before_bytes": line.before_bytes,
        "after_bytes": line.after_bytes,
        "most_bytes_change": line.most_change_bytes,
        "category": line.category or None,
        "modules": [
            {"name": name or None, "bytes_change": change} for name, change in line.modules
        ],
        "asked_for_at": place_to_json(line.inner) if line.inner is not None else None,
        "was": place_to_json(line.was) if line.was is not None else None,
        "aligned_by": "function and order" if line.was is not None else "line",
    }
