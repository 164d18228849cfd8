"""Facts: what was read, before anything is judged."""

from __future__ import annotations

from vramlens.analyses.explanation import Overwritten, RecordingFacts
from vramlens.trace import Meta, Trace


def facts_of(trace: Trace) -> RecordingFacts:
    """What a recording is: its size, its versions, the run it comes from."""
    return RecordingFacts(
        source=trace.source,
        torch=trace.torch_version,
        device=trace.device_name,
        events=sum(len(recorded_device.events) for recorded_device in trace.devices.values()),
        allocations=sum(
            len(recorded_device.allocations) for recorded_device in trace.devices.values()
        ),
        complete=trace.complete,
        missing=trace.missing,
        settings=trace.settings,
        devices=tuple(trace.devices),
        meta=trace.meta,
        overwritten=_overwritten(trace, trace.meta) if trace.meta is not None else (),
        named_tensors=len(trace.names) if trace.names is not None else 0,
        samples=len(trace.samples) if trace.samples is not None else 0,
        members=trace.members,
    )


def _overwritten(trace: Trace, meta: Meta) -> tuple[Overwritten, ...]:
    rings = []
    for index, device in trace.devices.items():
        if meta.wrapped.get(index) and len(device.events):
            first = int(device.clock_us[0])
            lost = (
                None
                if meta.started_us is None or first < meta.started_us
                else first - meta.started_us
            )
            rings.append(Overwritten(index, first, lost))
    return tuple(rings)
