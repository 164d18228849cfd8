"""A profile as a JSON object, key by key; times in microseconds from the trace's first event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramlens.ground.verdict import Verdict
from vramlens.report.finding_json import finding_to_json, place_to_json
from vramlens.schema import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vramlens.analyses.profile.explained_profile import Profile
    from vramlens.analyses.profile.memory_events import FailedRequest, Holder, MemoryReport
    from vramlens.analyses.profile.overview import CpuActivity, DeviceActivity, Gap


def profile_to_json(
    profile: Profile, grouping: str = "operator", order: str = "cpu"
) -> dict[str, Any]:
    """The answer as data: every key, null or [] where the trace cannot tell.

    Args:
        grouping: what operators are grouped by: operator, shape or line.
        order: what their first rows have most of: cpu, gpu, memory or calls.
    """
    use = profile.use
    return {
        "schema": SCHEMA,
        "profile": {
            "source": profile.source,
            "spans": profile.spans,
            "memory_events": profile.memory_events,
            "complete": not profile.missing,
            "missing": list(profile.missing),
            "with_stack": profile.with_stack,
            "gpus": list(profile.gpus),
            "start_us": _us(profile.wall_start_ns),
            "wall_us": _us(profile.wall_ns),
            "steps": [
                {"number": step.number, "start_us": _us(step.start_ns), "end_us": _us(step.end_ns)}
                for step in profile.steps
            ],
            "devices": [_device(use, profile.wall_ns) for use in profile.devices],
            "operators": [
                {
                    "name": row.name,
                    "kind": row.kind,
                    "calls": row.calls,
                    "self_cpu_us": _us(row.self_cpu_ns),
                    "total_cpu_us": _us(row.total_cpu_ns),
                    "self_device_us": _us(row.self_device_ns),
                    "total_device_us": _us(row.total_device_ns),
                    "self_memory_bytes": row.self_memory_bytes,
                    "self_allocated_bytes": row.self_allocated_bytes,
                    "shapes": row.shapes or None,
                    **place_to_json(row.place),
                }
                for row in profile.tables.by(grouping, order)
            ],
            "operators_by": grouping,
            "cpu": {
                "threads": profile.cpu_use.threads,
                "busy_us": _us(profile.cpu_use.busy_ns),
                "busy_share": _share(profile.cpu_use.busy_ns, profile.wall_ns),
                "waiting_us": _us(profile.cpu_use.waiting_ns),
                "rest_us": _us(profile.cpu_use.rest_ns),
                "mean_threads": round(profile.cpu_use.mean_threads, 3),
            },
            "operators_memory_device": profile.memory.device if profile.memory else None,
            "kernels_device": profile.device,
            "kernels": [
                {
                    "name": row.name,
                    "kind": row.kind,
                    "calls": row.calls,
                    "total_us": _us(row.total_ns),
                    "longest_us": _us(row.longest_ns),
                    "share_of_busy": _share(row.total_ns, use.busy_ns if use else 0),
                }
                for row in profile.kernels
            ],
            "memory": [_memory(memory) for memory in profile.memories],
        },
        "findings": [finding_to_json(finding) for finding in profile.findings],
    }


def _us(nanoseconds: int) -> float:
    return nanoseconds / 1000


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole > 0 else None


def _device(use: DeviceActivity, wall_ns: int) -> dict[str, Any]:
    return {
        "device": use.device,
        "busy_us": _us(use.busy_ns),
        "busy_share": _share(use.busy_ns, wall_ns),
        "idle_us": _us(use.idle_ns),
        "gaps": use.gaps,
        "longest_gaps": [_gap(gap) for gap in use.longest],
        "cpu_while_idle": _activities(use.cpu_while_idle),
        "cpu_while_idle_of_us": _us(use.examined_ns),
    }


def _gap(gap: Gap) -> dict[str, Any]:
    return {
        "start_us": _us(gap.start_ns),
        "us": _us(gap.ns),
        "where": gap.where,
        "cpu": _activities(gap.cpu),
        **place_to_json(gap.place),
    }


def _activities(activities: Sequence[CpuActivity]) -> list[dict[str, Any]]:
    return [{"name": row.name, "kind": row.kind, "us": _us(row.ns)} for row in activities]


def _memory(memory: MemoryReport) -> dict[str, Any]:
    by_category = memory.grouped_by == "category"
    return {
        "device": memory.device,
        "events": memory.events,
        "allocated_bytes": memory.allocated_bytes,
        "reserved_bytes": memory.reserved_bytes,
        "exact": _exact(memory),
        "peak_us": _us(memory.peak_ns),
        "peak_step": memory.peak_step,
        "step_peak_bytes": list(memory.step_peaks),
        "before_trace_bytes": memory.before_bytes if memory.paired else None,
        "at_peak": [_holder(holder) for holder in memory.at_peak],
        "by_category": dict(memory.by_group) if by_category else {},
        "category_verdict": Verdict.LIKELY if by_category else None,
        "timeline_by": memory.grouped_by if memory.paired else None,
        "timeline": [
            {"us": _us(moment.time_ns), "bytes": moment.bytes, "groups": dict(moment.groups)}
            for moment in memory.timeline
        ],
        "kept": [_holder(holder) for holder in memory.kept],
        "failed": [_failure(request) for request in memory.failed],
    }


def _exact(memory: MemoryReport) -> list[str]:
    is_exact = {
        "allocated_bytes": memory.exact,
        "reserved_bytes": memory.reserved_bytes is not None,
    }
    return [name for name, exact in is_exact.items() if exact]


def _failure(request: FailedRequest) -> dict[str, Any]:
    return {
        "us": _us(request.time_ns),
        "bytes": request.bytes,
        "operator": request.operator,
        **place_to_json(request.place),
    }


def _holder(holder: Holder) -> dict[str, Any]:
    return {
        "operator": holder.operator,
        **place_to_json(holder.place),
        "inferred": holder.inferred,
        "category": holder.category,
        "bytes": holder.bytes,
        "allocations": holder.allocations,
        "steps": holder.steps,
    }
