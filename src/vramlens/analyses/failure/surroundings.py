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
from vramlens.analyses.failure.failed_request import Outside
from vramlens.analyses.failure.oom import failure_of, message_of
from vramlens.errors import UsageError
from vramlens.ground.verdict import RowConfidence
from vramlens.ground.vocabulary import LedgerKind, LedgerRow
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
            f"a total of {format_size(total_bytes)} is less than the {format_size(reserved)} that"
            " the recording reserved: write 80GiB or 80GB"
        )
    failure = _failure_meta(trace, device)
    ledger = _measured_ledger(view, total_bytes)
    ledger_bytes = {part.kind: part.bytes for part in ledger.parts} if ledger is not None else {}
    outside = Outside(
        limit_bytes=trace.meta.device(device.device).process_limit_bytes,
        total_bytes=total_bytes or trace.total_bytes.get(device.device),
        free_bytes=failure.device_free_bytes if failure is not None else None,
        other_bytes=ledger_bytes.get("other_processes"),
        ledger=ledger,
    )
    return outside if message is None else _completed(outside, message)


def _completed(outside: Outside, message: OomMessage) -> Outside:
    """What is known, with what the error's text adds."""
    other_bytes = outside.other_bytes
    if other_bytes is None and message.other_processes:
        other_bytes = sum(size for _, size in message.other_processes)
    return replace(
        outside,
        limit_bytes=outside.limit_bytes or message.allowed_bytes,
        total_bytes=outside.total_bytes or message.total_bytes,
        free_bytes=outside.free_bytes if outside.free_bytes is not None else message.free_bytes,
        other_bytes=other_bytes,
        own_bytes=message.process_bytes,
    )


def _measured_ledger(view: Attribution, given_bytes: int | None) -> DeviceLedger | None:
    """The ledger that the recording measured when it was written; None where that is not the moment
    to tell of.

    Args:
        given_bytes: the device's memory as the person says it: a measured ledger of another total
            is not theirs.
    """
    device = view.device
    ledger = view.trace.ledgers.end.get(device.device) if view.trace.ledgers is not None else None
    if ledger is None:
        return None
    if abs((given_bytes or ledger.total_bytes) - ledger.total_bytes) > _SAME * ledger.total_bytes:
        return None
    if device.out_of_memory:
        after = device.events.action[device.out_of_memory[-1].event + 1 :]
        if np.isin(after, _CHANGES).any():
            return None  # it failed, and the recording was written later
    return ledger


def ledger_rows(
    view: Attribution, message: OomMessage | None, outside: Outside
) -> tuple[LedgerRow, ...]:
    """Where the device's memory was: at the failure if there was one, else at the end of the
    recording.
    """
    if outside.ledger is not None:
        return outside.ledger.parts
    if outside.total_bytes is None or view.trace.meta.is_prediction:
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
    failure = trace.meta.failure
    return failure if failure is not None and failure.device in (None, device.device) else None


def ledger_of(
    total_bytes: int, allocated_bytes: int, reserved_bytes: int, free_bytes: int | None
) -> tuple[LedgerRow, ...]:
    """The ledger of a device from the allocator's counters and what the driver says is free.

    What is neither reserved nor free belongs to the context, libraries and other processes:
    inferred, not told apart. Empty when the figures contradict each other.
    """
    outside = total_bytes - reserved_bytes - (free_bytes or 0)
    if outside < 0 or allocated_bytes > reserved_bytes:
        return ()
    rows = [
        LedgerRow(LedgerKind.PYTORCH_ALLOCATED, allocated_bytes, RowConfidence.EXACT),
        LedgerRow(LedgerKind.PYTORCH_CACHED, reserved_bytes - allocated_bytes, RowConfidence.EXACT),
    ]
    if free_bytes is None:
        return (*rows, LedgerRow(LedgerKind.UNKNOWN, outside, RowConfidence.UNKNOWN))
    return (
        *rows,
        LedgerRow(LedgerKind.OUTSIDE_PYTORCH, outside, RowConfidence.INFERRED),
        LedgerRow(LedgerKind.FREE, free_bytes, RowConfidence.EXACT),
    )
