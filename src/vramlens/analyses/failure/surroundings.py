"""What lies around the allocator: the device's memory, the process's limit, other processes, and
the ledger of it all.

A bare snapshot tells none of it. Sources, the surest first: what the recording measured itself, the
error's text, and what the person says.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.failure.oom import Outside, failure_of, message_of
from vramlens.analyses.memory.ledger import ledger_of
from vramlens.errors import UsageError
from vramlens.ground.vocabulary import LedgerRow
from vramlens.read.oom.oom_text import OomMessage, find_oom_messages
from vramlens.trace import Action, DeviceLedger, DeviceTrace, FailureMeta, Trace
from vramlens.units import format_size

_SAME = 0.02
"""What a person calls 80 GiB, PyTorch and the driver count differently."""
_CHANGES = (
    Action.ALLOC,
    Action.FREE_REQUESTED,
    Action.SEGMENT_ALLOC,
    Action.SEGMENT_FREE,
    Action.SEGMENT_MAP,
)


def message_for(view: Attribution, messages: Sequence[OomMessage]) -> OomMessage | None:
    """The message that a device's failure printed: one of those given, else the one that the
    recording holds.

    Raises:
        UsageError: messages are given, and none is this failure's.
    """
    failure = failure_of(view)
    if not messages:
        recorded = _failure_meta(view.trace, view.device)
        text = recorded.message if recorded is not None else None
        if failure is None or not text:
            return None
        return message_of(
            find_oom_messages(io.BytesIO(text.encode(errors="replace"))),
            failure,
            view.device.device,
        )
    if failure is None:
        raise UsageError(
            "no request failed in this recording, so the error in the log is from another run"
        )
    message = message_of(messages, failure, view.device.device)
    if message is None:
        raise UsageError(
            "the errors in the log are from another run: here "
            f"{format_size(failure.tried_bytes)} failed on device "
            f"{view.device.device} with {format_size(failure.allocated_bytes)} allocated"
        )
    return message


def outside_of(
    view: Attribution, message: OomMessage | None, total_bytes: int | None = None
) -> Outside:
    """What is known of the surroundings at the failure.

    Args:
        message: the error's text, which is about that very moment.
        total_bytes: the device's memory as the person says it.

    Raises:
        UsageError: the person's figure is less than the recording reserved.
    """
    trace, device = view.trace, view.device
    reserved = device.reserved.peak_bytes
    if total_bytes is not None and total_bytes < reserved:
        raise UsageError(
            f"a total of {format_size(total_bytes)} is less than the {format_size(reserved)} that the recording "
            "reserved: write 80GiB or 80GB"
        )
    total = total_bytes or trace.total_bytes.get(device.device)
    outside = _recorded_outside(view, total_bytes, total)
    if message is None:
        return outside
    return _completed(outside, message)


def _completed(outside: Outside, message: OomMessage) -> Outside:
    other_bytes = None
    if message.other_processes:
        other_bytes = sum(size for _, size in message.other_processes)
    return Outside(
        limit_bytes=outside.limit_bytes or message.allowed_bytes,
        total_bytes=outside.total_bytes or message.total_bytes,
        free_bytes=outside.free_bytes if outside.free_bytes is not None else message.free_bytes,
        other_bytes=other_bytes if outside.other_bytes is None else outside.other_bytes,
        own_bytes=message.process_bytes,
    )


def _recorded_outside(view: Attribution, said_bytes: int | None, total: int | None) -> Outside:
    trace, device = view.trace, view.device
    device_meta = trace.meta.devices.get(device.device) if trace.meta is not None else None
    failure = _failure_meta(trace, device)
    ledger = measured_ledger(view, said_bytes)
    ledger_bytes = {part.kind: part.bytes for part in ledger.parts} if ledger is not None else {}
    return Outside(
        limit_bytes=device_meta.process_limit_bytes if device_meta is not None else None,
        total_bytes=total,
        free_bytes=failure.device_free_bytes if failure is not None else None,
        other_bytes=ledger_bytes.get("other_processes"),
    )


def measured_ledger(view: Attribution, total_bytes: int | None = None) -> DeviceLedger | None:
    """The ledger that the recording measured when it was written; None where that is not the moment
    to tell of.

    Args:
        total_bytes: the device's memory as the person says it: a measured ledger of another total
            is not theirs.
    """
    device = view.device
    ledger = view.trace.ledgers.end.get(device.device) if view.trace.ledgers is not None else None
    if (
        ledger is None
        or abs((total_bytes or ledger.total_bytes) - ledger.total_bytes)
        > _SAME * ledger.total_bytes
    ):
        return None
    if (
        device.out_of_memory
        and np.isin(device.events.action[device.out_of_memory[-1].event + 1 :], _CHANGES).any()
    ):
        return None  # it failed, and the recording was written later
    return ledger


def ledger_rows(
    view: Attribution, message: OomMessage | None, outside: Outside, total_bytes: int | None = None
) -> tuple[LedgerRow, ...]:
    """Where the device's memory was: at the failure if there was one, else at the end of the
    recording.
    """
    measured = measured_ledger(view, total_bytes)
    if measured is not None:
        return measured.parts
    is_prediction = view.trace.meta is not None and view.trace.meta.is_prediction
    if outside.total_bytes is None or is_prediction:
        return ()
    if message is not None and message.total_bytes is not None:
        from vramlens.analyses.error_text.text_verdict import explain_message

        verdict = explain_message(replace(message, total_bytes=outside.total_bytes))
        if verdict.ledger:
            return verdict.ledger
    return _counted_ledger(view.device, outside.total_bytes)


def _counted_ledger(device: DeviceTrace, total_bytes: int) -> tuple[LedgerRow, ...]:
    """The ledger by the recorded events, at the failure or at the end."""
    failure = device.out_of_memory[-1] if device.out_of_memory else None
    event = failure.event if failure is not None else len(device.events) - 1
    allocations = device.allocations
    alive = allocations.alive_after(event)
    in_use = int(allocations.taken_bytes[alive[allocations.free_requested[alive] > event]].sum())
    reserved = int(device.segments.size_bytes[device.segments.alive_after(event)].sum())
    free = failure.device_free_bytes if failure is not None else None
    return ledger_of(total_bytes, in_use, reserved, free)


def _failure_meta(trace: Trace, device: DeviceTrace) -> FailureMeta | None:
    """What the recording says of the error it was written for, if that was on this device."""
    failure = trace.meta.failure if trace.meta is not None else None
    return failure if failure is not None and failure.device in (None, device.device) else None
