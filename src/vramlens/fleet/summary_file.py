"""The summary beside a recording: what ``vramlens ranks`` needs of a rank, in some kilobytes.

Each rank writes its own when its recording is written (``rank00003.vram.summary``), so that
thousands of ranks are compared by reading kilobytes of each. A summary counts as long as the
recording beside it has the size that it tells, or is not there at all.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from dataclasses import dataclass, replace

from vramlens.allowance import EXPANDS_TIMES, count_expanded, count_file
from vramlens.api import load
from vramlens.errors import InputError, VramlensError
from vramlens.fleet.lake.staging import summary_of
from vramlens.fleet.summary_json import summary_from_json, summary_to_json
from vramlens.ranks import RankSummary
from vramlens.whole_file import whole_file

ENDING = ".summary"
_SCHEMA = "vramlens.summary/1"
_LARGEST_BYTES, _LONGEST_TEXT = 1 << 20, 1 << 24
_LEAST_SHARE = 1000
"""Lines that never held a thousandth of the peak are left out: they differ on no rank. So are
frames that neither held that nor requested a thousandth of all.
"""
_MOST_LINES = 100


@dataclass(frozen=True, slots=True)
class SummaryFile:
    """A summary beside a recording.

    Attributes:
        path: where it is.
        is_current: True where its recording is the one that it tells of, or is not there.
        summary: of the rank.
    """

    path: str
    is_current: bool
    summary: RankSummary


def recording_of(path: str) -> str:
    """The recording that a summary lies beside."""
    return path.removesuffix(ENDING)


def write_summary(recording: str) -> str:
    """Writes the summary of a recording beside it, and gives its path.

    Raises:
        VramlensError: the recording cannot be read, or tells of no rank.
        OSError: the summary cannot be written.
    """
    trace = load(recording)
    if trace.meta.rank is None:
        raise InputError(f"{recording}: is of no rank")
    summary = _shortened(summary_of(trace, trace.meta.rank))
    content = {
        "schema": _SCHEMA,
        "recording_bytes": os.stat(recording).st_size,
        "summary": summary_to_json(replace(summary, source=os.path.basename(recording))),
    }
    path = f"{recording}{ENDING}"
    with whole_file(path, is_private=True) as file:
        file.write(zlib.compress(json.dumps(content).encode(), 9))
    return path


def _shortened(summary: RankSummary) -> RankSummary:
    least_bytes = summary.peak_requested_bytes // _LEAST_SHARE
    lines = [
        line
        for line in summary.lines
        if line.peak_bytes >= least_bytes or line.category == "parameters"
    ]
    least_total = max((frame.total_bytes for frame in summary.frames), default=0) // _LEAST_SHARE
    frames = [
        frame
        for frame in summary.frames
        if frame.total_bytes >= least_total
        or max(frame.at_peak_bytes, frame.reserved_bytes) >= least_bytes
    ]
    return replace(summary, lines=tuple(lines[:_MOST_LINES]), frames=tuple(frames[:_MOST_LINES]))


@dataclass(frozen=True, slots=True)
class UnreadSummary:
    """The bytes of a file beside a recording: reading them waits, what is in them is worked out
    later.

    Attributes:
        path: where it is.
        data: what it holds; one byte more than any summary has where it is larger.
        recording_bytes: the size of its recording; None where there is none.
    """

    path: str
    data: bytes
    recording_bytes: int | None


def open_summary(path: str) -> UnreadSummary:
    """The bytes of a summary.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        data = file.read(_LARGEST_BYTES + 1)
    try:
        recording_bytes = os.stat(recording_of(path)).st_size
    except OSError:
        recording_bytes = None
    return UnreadSummary(path, data, recording_bytes)


def summary_in(unread: UnreadSummary) -> SummaryFile:
    """The summary in the bytes of a file.

    Raises:
        InputError: it is not a summary.
    """
    path = unread.path
    # There may be thousands, without a recording beside them.
    count_file(path, len(unread.data))
    try:
        told_bytes, summary = _content(unread.data)
    except (ValueError, RecursionError, zlib.error) as error:
        raise InputError(f"{path}: {error}") from None
    return SummaryFile(
        path=path,
        is_current=unread.recording_bytes in (None, told_bytes),
        summary=replace(summary, source=recording_of(path)),
    )


def _content(data: bytes) -> tuple[object, RankSummary]:
    """The size of the recording that a summary tells of, and the summary."""
    if len(data) > _LARGEST_BYTES:
        raise ValueError("larger than any summary")
    expanding = zlib.decompressobj()
    text = expanding.decompress(data, _LONGEST_TEXT)
    if expanding.unconsumed_tail:
        raise ValueError("expands to more than any summary")
    count_expanded(min(len(text), EXPANDS_TIMES * len(data)))
    content = json.loads(text)
    if not isinstance(content, dict) or content.get("schema") != _SCHEMA:
        raise ValueError("no summary of this form")
    return content.get("recording_bytes"), summary_from_json(content.get("summary"))


def main(arguments: list[str]) -> int:
    """Writes the summary of each recording named; what a rank runs after it has written its own."""
    for path in arguments:
        try:
            write_summary(path)
        except (OSError, VramlensError):  # the recording is read instead
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
