"""One call of a profiled function in words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramlens.foreign_text import text_of
from vramlens.units import counted, format_duration, format_size

if TYPE_CHECKING:
    from vramlens.analyses.profile.function_use import DeviceUse, LineShare

_MOST_SHARES = 5  # lines behind a number, in print


@dataclass(frozen=True, slots=True)
class FunctionProfile:
    """One call of a profiled function; ``str`` of it is what is printed.

    Attributes:
        function, file, line: which, and where its ``def`` is.
        seconds: how long the call took on the host (the GPU is not waited for), without vramlens's
            own work.
        error: the type of the exception that ended it, else None.
        inner_calls: calls of itself while it ran; they are part of it and not reported apart.
        devices: those whose memory it changed or used, the highest peak first.
        notes: what is not exact, and why.
    """

    function: str
    file: str
    line: int
    seconds: float
    error: str | None
    inner_calls: int
    devices: tuple[DeviceUse, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return text_of(_text(self))


def _text(profile: FunctionProfile) -> Iterator[str]:
    """Yields what is printed, line by line; the first is the answer."""
    place = f" ({os.path.basename(profile.file)}:{profile.line})" if profile.file else ""
    has_several = len(profile.devices) > 1
    answers = [
        f"device {use.device}: {_answer(use)}" if has_several else _answer(use)
        for use in profile.devices
    ]
    answer = "; ".join(answers) or "no GPU memory requested or freed"
    yield f"{profile.function}{place}: {answer}, {_duration_words(profile)}"
    for use in profile.devices:
        yield from _device_lines(use, f", device {use.device}" if has_several else "")
    yield from (f"  note: {note}" for note in profile.notes)


def _duration_words(profile: FunctionProfile) -> str:
    ending = f"raised {profile.error} after" if profile.error else "in"
    duration = format_duration(profile.seconds * 1e9)
    if not profile.inner_calls:
        return f"{ending} {duration}"
    return f"{ending} {duration}, with {counted(profile.inner_calls, 'call')} of itself inside"


def _device_lines(use: DeviceUse, device: str) -> Iterator[str]:
    """Yields what is behind a device's numbers, and the lines of the function."""
    yield from _behind(f"what makes up the peak{device}:", use.at_peak, use.freed_at_peak_bytes)
    yield from _behind(f"what remained{device}:", use.stayed, use.freed_bytes)
    if use.lines:
        yield f"  {'line':>6} {'hits':>8} {'change':>12} {'peak':>12}  source{device}"
    for line in use.lines:
        hits = f"{line.hits:,}" if line.hits else ""
        change = _signed(line.change_bytes) if line.change_bytes else ""
        peak = format_size(line.peak_bytes) if line.peak_bytes is not None else ""
        yield f"  {line.line:>6} {hits:>8} {change:>12} {peak:>12}  {line.source}".rstrip()


def _answer(use: DeviceUse) -> str:
    balance = (
        f"{_signed(use.kept_bytes)} kept"
        if use.kept_bytes >= 0
        else f"{format_size(-use.kept_bytes)} freed"
    )
    about = "" if use.exact else "about "
    peak = (
        "unknown"
        if use.peak_bytes is None
        else f"{about}{format_size(use.peak_bytes)} above the start"
    )
    return f"{balance if use.kept_bytes else 'nothing kept'}, peak {peak}"


def _signed(size_bytes: int) -> str:
    return f"+{format_size(size_bytes)}" if size_bytes > 0 else format_size(size_bytes)


def _behind(title: str, shares: tuple[LineShare, ...], freed_bytes: int) -> Iterator[str]:
    if shares or freed_bytes:
        yield f"  {title}"
    for share in shares[:_MOST_SHARES]:
        yield _share_row(share.bytes, share.allocations, _share_words(share))
    more = shares[_MOST_SHARES:]
    if more:
        size = sum(share.bytes for share in more)
        allocations = sum(share.allocations for share in more)
        yield _share_row(size, allocations, counted(len(more), "other line"))
    if freed_bytes:
        freed = format_size(-freed_bytes)
        yield f"    {freed:>12}  {'':>18}  freed from before the call"


def _share_row(size_bytes: int, allocations: int, words: str) -> str:
    return f"    {format_size(size_bytes):>12}  {counted(allocations, 'allocation'):>18}  {words}"


def _share_words(share: LineShare) -> str:
    where = "without a Python line"
    if share.place:
        place = share.place
        where = f"{os.path.basename(place.file)}:{place.line} in {place.function}"
    if not share.inferred_bytes:
        return where
    part = format_size(share.inferred_bytes)
    return f"{where} ({part} likely: requested by its backward pass)"
