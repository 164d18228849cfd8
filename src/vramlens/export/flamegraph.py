"""Flame graph: collapsed stacks, ``a;b;c 123``, for flamegraph.pl, inferno and whatever else
reads them.
"""

from __future__ import annotations

from collections.abc import Iterator

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.export.stack_bytes import DeviceStacks, frame_label
from vramlens.trace import Frame

_CHUNK = 1 << 12


def flamegraph_chunks(view: Attribution, event: int) -> Iterator[bytes]:
    """A line a stack: its frames, outermost first, and the requested bytes alive right after an
    event.
    """
    frames: dict[Frame, int] = {}
    profile = DeviceStacks(view, frames).at(event, "")
    # A semicolon ends a frame: one in a name would make two of it.
    labels = [frame_label(frame).replace(";", ":") for frame in frames]
    lines = [
        f"{';'.join([labels[frame] for frame in path])} {size}\n" for path, size in profile.stacks
    ]
    for first in range(0, len(lines), _CHUNK):
        yield "".join(lines[first : first + _CHUNK]).encode("utf-8", "backslashreplace")
