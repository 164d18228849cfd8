"""speedscope: bytes by stack as sampled profiles, for speedscope.app.

The format is that of https://www.speedscope.app/file-format-schema.json; a sample's weight is its
bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from vramlens import __version__
from vramlens.analyses.attribution.attribution import Attribution
from vramlens.export.stack_bytes import DeviceStacks, StackProfile, frame_file, frame_name
from vramlens.trace import Frame

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_CHUNK = 1 << 12


def speedscope_chunks(views: Sequence[tuple[Attribution, int, str]], name: str) -> Iterator[bytes]:
    """The bytes of a file, piece by piece: three profiles a device.

    Args:
        views: devices, each with the event after which its heap is shown and what that moment is
            called.
        name: of the recording.
    """
    frames: dict[Frame, int] = {}
    profiles = [
        profile
        for view, event, moment in views
        for profile in _profiles(view, event, moment, frames)
    ]
    head = {
        "$schema": _SCHEMA,
        "exporter": f"vramlens {__version__}",
        "name": name,
        "activeProfileIndex": 0,
    }
    yield (json.dumps(head)[:-1] + ',\n"shared":{"frames":[\n').encode()
    yield from _joined([json.dumps(_frame(frame)) for frame in frames])
    yield b']},\n"profiles":[\n'
    for place, profile in enumerate(profiles):
        if place:
            yield b",\n"
        yield from _profile(profile)
    yield b"]}\n"


def _profiles(
    view: Attribution, event: int, moment: str, frames: dict[Frame, int]
) -> list[StackProfile]:
    stacks, device = DeviceStacks(view, frames), f"GPU {view.device.device}"
    return [
        stacks.at(event, f"{device}: live at {moment}"),
        stacks.allocated(f"{device}: allocated in all"),
        stacks.on_average(
            f"{device}: live on average (bytes x lifetime / length of the recording)"
        ),
    ]


def _frame(frame: Frame) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": frame_name(frame)}
    if frame_file(frame):
        entry["file"] = frame_file(frame)
    if frame.line > 0:
        entry["line"] = frame.line
    return entry


def _profile(profile: StackProfile) -> Iterator[bytes]:
    total = profile.total_bytes
    head = {
        "type": "sampled",
        "name": profile.name,
        "unit": "bytes",
        "startValue": 0,
        "endValue": total,
    }
    yield (json.dumps(head)[:-1] + ',"samples":[\n').encode()
    yield from _joined([json.dumps(path, separators=(",", ":")) for path, _ in profile.stacks])
    yield b'],"weights":['
    yield from _joined([str(size) for _, size in profile.stacks])
    yield b"]}"


def _joined(texts: Sequence[str]) -> Iterator[bytes]:
    for first in range(0, len(texts), _CHUNK):
        yield ((",\n" if first else "") + ",\n".join(texts[first : first + _CHUNK])).encode()
