"""What is said of one call of a profiled function."""

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


def _text(found: FunctionProfile) -> Iterator[str]:
    """What is printed, line by line; the first is the answer."""
    place = f" ({os.path.basename(found.file)}:{found.line})" if found.file else ""
    uses = found.devices
    said = "; ".join(
        (f"device {use.device}: " if len(uses) > 1 else "") + _answer(use) for use in uses
    )
    end = f"raised {found.error} after" if found.error else "in"
    inner = (
        f", with {counted(found.inner_calls, 'call')} of itself inside" if found.inner_calls else ""
    )
    took = f"{end} {format_duration(found.seconds * 1e9)}{inner}"
    yield f"{found.function}{place}: {said or 'no GPU memory asked for or freed'}, {took}"
    for use in uses:
        device = f", device {use.device}" if len(uses) > 1 else ""
        yield from _behind(f"behind the peak{device}:", use.at_peak, use.freed_at_peak_bytes)
        yield from _behind(f"behind what stayed{device}:", use.stayed, use.freed_bytes)
        if use.lines:
            yield f"  {'line':>6} {'hits':>8} {'change':>12} {'peak':>12}  source{device}"
        for one in use.lines:
            hits = f"{one.hits:,}" if one.hits else ""
            change = _signed(one.change_bytes) if one.change_bytes else ""
            peak = format_size(one.peak_bytes) if one.peak_bytes is not None else ""
            yield f"  {one.line:>6} {hits:>8} {change:>12} {peak:>12}  {one.source}".rstrip()
    yield from (f"  note: {note}" for note in found.notes)


def _answer(use: DeviceUse) -> str:
    kept = (
        f"{_signed(use.kept_bytes)} kept"
        if use.kept_bytes >= 0
        else f"{format_size(-use.kept_bytes)} given back"
    )
    about = "" if use.exact else "about "
    peak = (
        "unknown"
        if use.peak_bytes is None
        else f"{about}{format_size(use.peak_bytes)} above the start"
    )
    return f"{kept if use.kept_bytes else 'nothing kept'}, peak {peak}"


def _signed(size_bytes: int) -> str:
    return f"+{format_size(size_bytes)}" if size_bytes > 0 else format_size(size_bytes)


def _behind(title: str, shares: tuple[LineShare, ...], freed_bytes: int) -> Iterator[str]:
    if shares or freed_bytes:
        yield f"  {title}"
    for share in shares[:_MOST_SHARES]:
        place = share.place
        where = (
            f"{os.path.basename(place.file)}:{place.line} in {place.function}"
            if place
            else "without a Python line"
        )
        part = format_size(share.inferred_bytes)
        likely = f" ({part} likely: asked for by its backward pass)" if share.inferred_bytes else ""
        yield f"    {format_size(share.bytes):>12}  {counted(share.allocations, 'allocation'):>18}  {where}{likely}"
    more = shares[_MOST_SHARES:]
    if more:
        count = counted(sum(one.allocations for one in more), "allocation")
        yield f"    {format_size(sum(one.bytes for one in more)):>12}  {count:>18}  {counted(len(more), 'other line')}"
    if freed_bytes:
        yield f"    {format_size(-freed_bytes):>12}  {'':>18}  freed of what was there before the call"
