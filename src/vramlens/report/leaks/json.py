"""Leaks as the JSON that docs/json.md fixes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramlens.report.finding_json import finding_to_json, place_to_json
from vramlens.schema import SCHEMA

if TYPE_CHECKING:
    from vramlens.analyses.leaks.leak import Leak
    from vramlens.analyses.leaks.rate import Prediction
    from vramlens.analyses.leaks.recorded_leaks import DeviceLeaks, LeakReport
    from vramlens.analyses.leaks.recorded_owners import Owner


def leaks_to_json(report: LeakReport) -> dict[str, Any]:
    """The answer of ``vramlens leaks`` as data: null or [] where the recording cannot tell."""
    return {
        "schema": SCHEMA,
        "leaks": [_judged_leak(leak) for leak in report.leaks],
        "devices": [_device(device) for device in report.devices],
        "findings": [
            finding_to_json(finding) for device in report.devices for finding in device.findings
        ],
        "recording": {
            "source": report.recording.source,
            "torch": report.recording.torch,
            "complete": report.recording.complete,
            "missing": list(report.recording.missing),
            "has_owners": report.has_owners,
        },
    }


def leak_to_json(leak: Leak) -> dict[str, Any]:
    """A leak: the keys that every verb's leaks have."""
    return {
        "verdict": leak.verdict,
        "class": leak.kind,
        **place_to_json(leak.place),
        "bytes_per_step": leak.bytes_per_step if leak.steps else None,
        "bytes": leak.bytes,
        "steps": leak.steps,
        "owner": _owner(leak.owner) if leak.owner is not None else None,
        "fix": leak.fix,
    }


def _judged_leak(leak: Leak) -> dict[str, Any]:
    """A leak, and what its verdict rests on."""
    return leak_to_json(leak) | {
        "device": leak.device,
        "bytes_per_step_low": leak.low,
        "bytes_per_step_high": leak.high,
        "allocations_per_step": round(leak.allocations_per_step, 3),
        "reason": leak.reason or None,
        "evidence": list(leak.evidence),
        "needs_steps": leak.needs_steps,
        "small": leak.is_small,
    }


def _owner(owner: Owner) -> dict[str, Any]:
    return {
        "name": owner.name,
        "kind": owner.kind,
        "file": owner.file,
        "line": owner.line,
        "chain": list(owner.chain),
    }


def _device(device: DeviceLeaks) -> dict[str, Any]:
    return {
        "device": device.device,
        "steps": device.steps,
        "steps_source": device.source,
        "judged_steps": device.judged_steps,
        "needs_steps": device.needs_steps,
        "out_of_memory": _prediction(device.prediction),
        "failed_step": device.failed_step,
        "overwritten": device.wrapped,
        "least_bytes_per_step": device.least_bytes_per_step,
    }


def _prediction(prediction: Prediction | None) -> dict[str, Any] | None:
    if prediction is None:
        return None
    return {
        "in_steps": prediction.steps,
        "in_steps_low": prediction.low,
        "in_steps_high": prediction.high,
        "limit_bytes": prediction.limit_bytes,
        "room_bytes": prediction.room_bytes,
    }
