"""Leaks as the JSON that docs/json.md fixes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramlens.report.finding_json import finding_to_json
from vramlens.schema import SCHEMA

if TYPE_CHECKING:
    from vramlens.analyses.leaks.rate import TimeToFull
    from vramlens.analyses.leaks.recorded_leaks import DeviceLeaks, RecordedLeakReport


def leaks_to_json(report: RecordedLeakReport) -> dict[str, Any]:
    """The answer of ``vramlens leaks`` as data: null or [] where the recording cannot tell."""
    return {
        "schema": SCHEMA,
        "leaks": [leak.to_dict() for leak in report.leaks],
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


def _prediction(prediction: TimeToFull | None) -> dict[str, Any] | None:
    if prediction is None:
        return None
    return {
        "in_steps": prediction.steps,
        "in_steps_low": prediction.low,
        "in_steps_high": prediction.high,
        "limit_bytes": prediction.limit_bytes,
        "room_bytes": prediction.room_bytes,
    }
