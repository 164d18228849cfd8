"""Bytes by stack: what a flame graph draws, outermost frame first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.export.clock import clock_of, start_of
from vramlens.report.wording import place_name, visible
from vramlens.trace import Frame

NO_FRAMES = "(no stack recorded)"
BACKWARD = "(backward pass, likely of:)"
"""PyTorch's autograd threads leave no Python frames; below it stands the forward line that they
serve.
"""
_LONGEST_NAME = 500


@dataclass(frozen=True, slots=True)
class StackProfile:
    """Bytes of stacks.

    Attributes:
        name: what is counted.
        stacks: by stack, as frame numbers, outermost first, its bytes; the most first.
    """

    name: str
    stacks: tuple[tuple[tuple[int, ...], int], ...]

    @property
    def total_bytes(self) -> int:
        """Of all stacks together."""
        return sum(size for _, size in self.stacks)


class DeviceStacks:
    """The bytes of one device's stacks, weighed in several ways.

    Args:
        view: the device.
        frames: texts of frames by (function, file, line), to which those that are met are added.
    """

    def __init__(self, view: Attribution, frames: dict[Frame, int]) -> None:
        self._view, self._frames = view, frames
        rows, stacks = view.device.allocations, view.trace.stacks
        deep = np.append(np.diff(stacks.starts) > 0, False)  # the last is that of NO_STACK
        bare = ~deep[np.minimum(rows.stack, len(stacks)).astype(np.int64)]
        lent = np.where(view.phases.inferred, view.phases.frame, -1)
        # A stack, or without one the line that the backward pass served: a key each.
        keys = np.where(bare, lent + np.int64(len(stacks)) + 1, rows.stack.astype(np.int64))
        self._keys, key_of_row = np.unique(keys, return_inverse=True)
        self._which = key_of_row.reshape(-1)
        self._paths: dict[int, tuple[int, ...]] = {}

    def at(self, event: int, name: str) -> StackProfile:
        """Requested bytes alive right after an event."""
        rows = self._view.device.allocations
        return self._weighed(
            name, np.where((rows.born <= event) & (rows.died > event), rows.requested_bytes, 0)
        )

    def allocated(self, name: str) -> StackProfile:
        """Requested bytes of all allocations that the recording saw being made."""
        rows = self._view.device.allocations
        return self._weighed(name, np.where(rows.born >= 0, rows.requested_bytes, 0))

    def on_average(self, name: str) -> StackProfile:
        """Requested bytes times the share of the recording during which they were alive, rounded
        down.
        """
        device = self._view.device
        rows, clock = device.allocations, clock_of(device, start_of([device]))
        lived = clock.at(rows.died) - clock.at(rows.born)
        shares = lived / max(clock.end_ns, 1)
        return self._weighed(name, np.asarray(rows.requested_bytes * shares))

    def _weighed(self, name: str, weights: NDArray[np.int64] | NDArray[np.float64]) -> StackProfile:
        totals = np.zeros(len(self._keys), weights.dtype)
        np.add.at(totals, self._which, weights)
        by_path: dict[tuple[int, ...], int] = {}
        for key, total in zip(self._keys.tolist(), totals.astype(np.int64).tolist(), strict=True):
            if total > 0:
                path = self._path(key)
                by_path[path] = by_path.get(path, 0) + total
        return StackProfile(name, tuple(sorted(by_path.items(), key=lambda item: -item[1])))

    def _path(self, key: int) -> tuple[int, ...]:
        path = self._paths.get(key)
        if path is None:
            path = self._paths[key] = tuple(
                self._number(frame) for frame in self._outermost_first(key)
            )
        return path

    def _outermost_first(self, key: int) -> list[Frame]:
        stacks = self._view.trace.stacks
        if key < len(stacks):
            return stacks.of(key)[::-1]
        frame = key - len(stacks) - 1
        return (
            [Frame(NO_FRAMES, 0, "")]
            if frame < 0
            else [Frame(BACKWARD, 0, ""), stacks.frame(frame)]
        )

    def _number(self, frame: Frame) -> int:
        return self._frames.setdefault(frame, len(self._frames))


def frame_name(frame: Frame) -> str:
    """The function, or what stands for it; one line."""
    return short_name(frame.function or frame.file or "?")


def frame_file(frame: Frame) -> str:
    """The file, "" for what stands for a frame; one line."""
    return short_name(frame.file) if frame.function else ""


def frame_label(frame: Frame) -> str:
    """``forward (train/model.py:39)``."""
    file = frame_file(frame)
    return (
        f"{frame_name(frame)} ({place_name(Frame(file, frame.line, ''))})"
        if file
        else frame_name(frame)
    )


def short_name(text: str, most: int = _LONGEST_NAME) -> str:
    """A name of at most so many characters and an ellipsis, for a file that others show."""
    return visible(text if len(text) <= most else f"{text[:most]}…")
