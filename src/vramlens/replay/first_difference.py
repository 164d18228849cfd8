"""Where a replay first did something else than the recording says, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramlens.replay.requests import Requests
from vramlens.trace import Action
from vramlens.units import format_size

if TYPE_CHECKING:
    from vramlens.trace import DeviceTrace, Trace


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first place where the replay did something else than the recording says.

    Attributes:
        event: its index.
        recorded, simulated: what happened, in words.
        why: what may explain it.
    """

    event: int
    recorded: str
    simulated: str
    why: str


_WORDS = {
    Action.ALLOC: "an allocation",
    Action.FREE_COMPLETED: "a free block",
    Action.SEGMENT_ALLOC: "a new segment",
    Action.SEGMENT_FREE: "a segment returned to the driver",
    Action.SEGMENT_MAP: "newly mapped memory",
    Action.SEGMENT_UNMAP: "memory unmapped",
    Action.OOM: "a failed request",
}


def _words(action: int, address: int, size: int) -> str:
    action_words = _WORDS.get(Action(action), "nothing") if action >= 0 else "nothing"
    return (
        f"{action_words} of {format_size(size)} at {address:#x}"
        if address
        else f"{action_words} of {format_size(size)}"
    )


def first_difference(
    trace: Trace, device: DeviceTrace, requests: Requests, found: dict[str, int]
) -> FirstDifference | None:
    """The first place where a replay's summary differs from the recording; None where nothing
    does.
    """
    event, events = found["first_difference"], device.events
    if event < 0:
        return None
    recorded = "the end of the recording"
    if event < len(events):
        recorded = _words(
            int(events.action[event]), int(events.address[event]), int(events.size[event])
        )
    simulated = "nothing"
    if found["simulated_action"] >= 0:
        simulated = _words(
            found["simulated_action"], found["simulated_address"] % 2**64, found["simulated_size"]
        )
    return FirstDifference(event, recorded, simulated, _why(trace, device, requests))


def _why(trace: Trace, device: DeviceTrace, requests: Requests) -> str:
    """What the recording lacks that may explain a difference."""
    if device.orphan_events:
        return (
            "events are missing from the recording"
            " (a full ring buffer, skip_actions, or a file cut short)"
        )
    if requests.warm:
        return (
            "recording began in the middle of the run, so the sizes of some early blocks"
            " and the places of unmapped memory are missing"
        )
    if trace.settings.get("garbage_collection_threshold") and trace.meta.is_empty:
        return (
            "garbage collection depends on the memory limit,"
            " which a bare snapshot does not contain: pass it with --recorded-cap"
        )
    if not requests.has_stacks:
        return (
            "it was recorded without stacks, so calls of empty_cache and the end of a MemPool"
            " look the same"
        )
    if not trace.torch_version:
        return (
            "the recording does not say which version of PyTorch made it,"
            " and no known version matches"
        )
    return (
        "an event is missing from the recording,"
        " or this PyTorch version has a rule that vramlens does not know"
    )
