"""Formats: what a recording can be exported to, and what each takes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from vramlens.analyses.attribution.attribution import Attribution, attribute
from vramlens.analyses.recording_explanation import choose_device, moment
from vramlens.errors import InputError
from vramlens.report.wording import visible
from vramlens.trace import DeviceTrace, Trace
from vramlens.units import counted, format_size

_ENDING = re.compile(r"(?i)(?:\.vram|\.pickle|\.pkl)?(?:\.xz|\.gz|\.zst)?$")


@dataclass(frozen=True, slots=True)
class Written:
    """What was exported: in a few words, and what is reduced or unknown in it, one sentence
    each.
    """

    what: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Format:
    """A format.

    Attributes:
        ending: of a file's name.
        opens: what to do with the file, with ``{}`` for its name.
        write: writes devices into an open file (a folder: by its name), at a moment.
        text: whether a terminal can show it.
        has_moment: whether it shows the heap at one moment.
        is_of_one_device: whether it holds one device only.
        is_folder: whether it is written as a folder.
    """

    ending: str
    opens: str
    write: Callable[[Sequence[Attribution], Any, str], Written]
    text: bool = True
    has_moment: bool = False
    is_of_one_device: bool = False
    is_folder: bool = False


def default_name(source: str, format_name: str) -> str:
    """``run.perfetto-trace`` for ``recordings/run.vram``: in the folder in which one is."""
    base = os.path.basename(source)
    stem = _ENDING.sub("", base) if base not in ("", "-") else ""
    return (stem or "recording") + FORMATS[format_name].ending


def export_recording(
    trace: Trace,
    format_name: str,
    out: BinaryIO | str,
    *,
    at: str | None = None,
    device: int | None = None,
) -> Written:
    """Writes a recording in a format, one of FORMATS.

    Args:
        trace: the recording.
        format_name: which.
        out: where to; the folder's name for a format that is one.
        at: the moment, for a format that has one: "peak", "oom", "end" or an event's number; None
            is the peak.
        device: the device; by default all, or for a format of one device the one with the highest
            requested peak.

    Raises:
        InputError: the recording holds no GPU memory, or not what the format shows.
        UsageError: there is no such device or moment, or what the format needs is not installed.
        OSError: it cannot be written.
    """
    fullest = choose_device(trace, device)
    if fullest is None:
        raise InputError(f"{visible(trace.source)}: contains no GPU memory and no events")
    chosen_format = FORMATS[format_name]
    devices = [fullest]
    if device is None and not chosen_format.is_of_one_device:
        devices = _used_devices(trace) or devices
    views = [attribute(trace, shown) for shown in devices]
    written = chosen_format.write(views, out, at or "peak")
    missing = tuple(f"the recording is incomplete: {sentence}" for sentence in trace.missing)
    return Written(written.what, (*missing, *written.notes))


def _used_devices(trace: Trace) -> list[DeviceTrace]:
    return [
        device for device in trace.devices.values() if len(device.events) or len(device.allocations)
    ]


def _pour(chunks: Iterator[bytes], out: BinaryIO) -> None:
    for chunk in chunks:
        out.write(chunk)


def _perfetto(views: Sequence[Attribution], out: BinaryIO, _at: str) -> Written:
    from vramlens.export.perfetto import perfetto_chunks

    return _timelines(perfetto_chunks, views, out)


def _chrome(views: Sequence[Attribution], out: BinaryIO, _at: str) -> Written:
    from vramlens.export.chrome import chrome_chunks

    return _timelines(chrome_chunks, views, out)


def _timelines(
    chunks: Callable[..., Iterator[bytes]], views: Sequence[Attribution], out: BinaryIO
) -> Written:
    from vramlens.export.clock import start_of
    from vramlens.export.timeline import timeline_of

    start_us = start_of([view.device for view in views])
    timelines = [timeline_of(view, start_us) for view in views]
    _pour(chunks(timelines), out)
    values = sum(len(series.values) for timeline in timelines for series in timeline.counters)
    notes = tuple(note for timeline in timelines for note in timeline.notes)
    return Written(f"{counted(values, 'counter value')} of {_devices(views)}", notes)


def _speedscope(views: Sequence[Attribution], out: BinaryIO, at: str) -> Written:
    from vramlens.export.speedscope import speedscope_chunks

    moments = [(view, moment(view.device, at), _called(view, at)) for view in views]
    _pour(speedscope_chunks(moments, visible(os.path.basename(views[0].trace.source))), out)
    return Written(
        f"memory of {_devices(views)} at {moments[0][2]}, on average, and all that was allocated"
    )


def _flamegraph(views: Sequence[Attribution], out: BinaryIO, at: str) -> Written:
    from vramlens.export.flamegraph import flamegraph_chunks

    (view,) = views
    event = moment(view.device, at)
    _pour(flamegraph_chunks(view, event), out)
    rows = view.device.allocations
    live = int(rows.requested_bytes[rows.alive_after(event)].sum())
    moment_name = _called(view, at)
    return Written(
        f"{format_size(live)} requested at {moment_name} of GPU {view.device.device}, by stack"
    )


def _csv(views: Sequence[Attribution], out: BinaryIO, _at: str) -> Written:
    from vramlens.export.csv import csv_chunks

    _pour(csv_chunks(views), out)
    return _rows(views)


def _parquet(views: Sequence[Attribution], out: BinaryIO, _at: str) -> Written:
    from vramlens.export.parquet import write_parquet

    write_parquet(views, out)
    return _rows(views)


def _tensorboard(views: Sequence[Attribution], folder: str, _at: str) -> Written:
    from vramlens.export.tensorboard_steps import write_tensorboard

    steps = write_tensorboard(views[0], folder)
    return Written(f"10 scalars of {counted(steps, 'step')}")


def _rows(views: Sequence[Attribution]) -> Written:
    count = sum(len(view.device.allocations) for view in views)
    return Written(f"{counted(count, 'allocation')} of {_devices(views)}, one per row")


def _devices(views: Sequence[Attribution]) -> str:
    return f"GPU {views[0].device.device}" if len(views) == 1 else counted(len(views), "GPU")


def _called(view: Attribution, at: str) -> str:
    return _MOMENTS.get(at, f"event {at} of {len(view.device.events):,}")


_MOMENTS = {"peak": "the peak", "end": "the end", "oom": "the failure"}
FORMATS = {
    "perfetto": Format(
        ending=".perfetto-trace",
        opens="open {} in https://ui.perfetto.dev (it stays on this machine)",
        write=_perfetto,
        text=False,
    ),
    "chrome": Format(
        ending=".chrome.json",
        opens="open {} in chrome://tracing or https://ui.perfetto.dev",
        write=_chrome,
    ),
    "speedscope": Format(
        ending=".speedscope.json",
        opens="npx speedscope {}",
        write=_speedscope,
        has_moment=True,
    ),
    "flamegraph": Format(
        ending=".folded",
        opens="flamegraph.pl --countname bytes {} > flames.svg",
        write=_flamegraph,
        has_moment=True,
        is_of_one_device=True,
    ),
    "csv": Format(ending=".csv", opens="head -3 {}", write=_csv),
    "parquet": Format(
        ending=".parquet",
        opens=(
            "duckdb -c \"SELECT category, sum(requested_bytes) FROM '{}'"
            ' WHERE alive_at_peak GROUP BY 1"'
        ),
        write=_parquet,
        text=False,
    ),
    "tensorboard": Format(
        ending=".tensorboard",
        opens="tensorboard --logdir {}",
        write=_tensorboard,
        text=False,
        is_of_one_device=True,
        is_folder=True,
    ),
}
"""The formats, one row each; adding one is its module and its row here."""
