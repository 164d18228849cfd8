"""A diff as data: the object that ``vramlens diff --json`` prints (docs/json.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramlens.report.finding_json import finding_to_json, place_to_json
from vramlens.schema import SCHEMA

if TYPE_CHECKING:
    from vramlens.analyses.compare.compared_run import Run
    from vramlens.analyses.compare.diff_answer import (
        CounterChange,
        Diff,
        LineChange,
        SettingDifference,
        StepChange,
    )
    from vramlens.analyses.compare.growth_changes import GrowthChange
    from vramlens.analyses.compare.job_change import JobChange, RankState
    from vramlens.analyses.compare.overlap import Overlap


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
        "by_step": [_step(row) for row in diff.by_step],
        "aligned_lines": diff.aligned_lines,
        "moved_lines": diff.moved_lines,
        "overlap": _overlap(diff.overlap),
        "differences": [_difference(difference) for difference in diff.others],
        "worse": list(diff.worse()),
        "findings": list(map(finding_to_json, diff.findings)),
        "came": list(map(finding_to_json, diff.came)),
        "went": list(map(finding_to_json, diff.went)),
        "growth_by_line": [_growth(growth) for growth in diff.growth_by_line],
        "different_workloads": list(diff.workload),
        "job": None if diff.job is None else _job(diff.job),
    }


def _step(row: StepChange) -> dict[str, int | None]:
    return {"step": row.step, "before_bytes": row.before_bytes, "after_bytes": row.after_bytes}


def _overlap(overlap: Overlap) -> dict[str, Any]:
    return {
        "different_programs": overlap.unrelated,
        "lines": _shares(overlap.lines),
        "activations": _shares(overlap.activations),
        "modules": _shares(overlap.modules),
    }


def _difference(difference: SettingDifference) -> dict[str, Any]:
    return {
        "name": difference.name,
        "before": difference.before,
        "after": difference.after,
        "text": difference.words,
    }


def _job(job: JobChange) -> dict[str, Any]:
    return {
        "before": job.before,
        "after": job.after,
        "rank": job.rank,
        "ranks": [
            {"rank": change.rank, "before": _state(change.before), "after": _state(change.after)}
            for change in job.ranks
        ],
        "came": [finding_to_json(finding) for finding in job.came],
        "went": [finding_to_json(finding) for finding in job.went],
        "notes": list(job.notes),
    }


def _state(state: RankState | None) -> dict[str, Any] | None:
    if state is None:
        return None
    return {
        "requested_bytes": state.requested_bytes,
        "bytes_per_step": state.growth_bytes,
        "failed": state.failed,
    }


def _growth(growth: GrowthChange) -> dict[str, Any]:
    return {
        **place_to_json(growth.place),
        "bytes_per_step_before": growth.before_bytes,
        "bytes_per_step_after": growth.after_bytes,
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
