"""Pages: the data of recordings, and one file that shows them with nothing loaded from anywhere;
a notebook shows it, too.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramlens import __version__
from vramlens.analyses.attribution.attribution import Attribution, attribute
from vramlens.analyses.recording_explanation import choose_device
from vramlens.api import explain_recording
from vramlens.foreign_text import html_text, visible
from vramlens.ground.conf_text import recorded_conf
from vramlens.units import format_size
from vramlens.view.columns import Columns
from vramlens.view.comparison import (
    comparison_of,
    difference_of,
    ranks_of_a_job,
    summary_of,
)
from vramlens.view.page_verdict import verdict_of, with_profile
from vramlens.view.sources import Sources
from vramlens.view.texts import one_line
from vramlens.view.timeline.collective_calls import Problems, RankFlight, problems_of
from vramlens.view.timeline.what_if_lines import lines_of
from vramlens.view.track import track_of
from vramlens.whole_file import whole_file

if TYPE_CHECKING:
    from vramlens.ranks import RankSummary
    from vramlens.trace import Trace

STATIC = Path(__file__).with_name("static")
_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
<body>
<noscript>This page draws with JavaScript, which is off. Nothing is loaded from anywhere.</noscript>
{data}<script>{script}</script>
"""
_DATA = '<script type="application/octet-stream" id="data">{data}</script>\n'
_HEIGHT = 640


@dataclass(frozen=True, slots=True)
class Choices:
    """What a page is to show.

    Attributes:
        device: only this one; None for all that hold memory or have events.
        confs: allocator settings to replay, drawn over the recorded lines.
        sources: the folder in which the program's files are looked for; None for no code in the
            page.
    """

    device: int | None = None
    confs: tuple[str, ...] = ()
    sources: str | None = None


def data_of(
    recordings: Sequence[Trace],
    choices: Choices | None = None,
    flights: Sequence[RankFlight | None] = (),
    ranks: Sequence[int] = (),
) -> bytes:
    """The data of a page about one or more recordings, every allocation included.

    Args:
        recordings: what the page is about.
        choices: what it is to show.
        flights: by recording, the flight record of the same rank, None for those that have none.
        ranks: by recording, which rank it is of; by default what the recordings say.

    Raises:
        UsageError: a recording has no such device, or PyTorch would refuse a setting.
        InputError: settings are to be replayed, and a recording cannot be.
    """
    choices = choices or Choices()
    columns = Columns()
    sources = Sources(choices.sources) if choices.sources is not None else None
    problems = problems_of(flights)
    known_ranks: Sequence[int | None] = ranks or [trace.meta.rank for trace in recordings]
    job = ranks_of_a_job(recordings, known_ranks)
    summaries: list[RankSummary] = []
    tracks: list[dict[str, Any]] = []
    first: list[int] = []
    for number, (trace, flight) in enumerate(zip_longest(recordings, flights[: len(recordings)])):
        first.append(len(tracks))
        rank = known_ranks[number]
        if rank is None and flight is not None:
            rank = flight.rank
        views = [
            attribute(trace, trace.devices[device]) for device in _devices(trace, choices.device)
        ]
        tracks += [
            _track(view, rank, columns, sources, choices, flight, problems) for view in views
        ]
        if job:
            summaries.append(summary_of(trace, job[number], views))
    header = {
        "version": 1,
        "vramlens": __version__,
        "title": title_of(recordings),
        "tracks": tracks,
        "comparison": comparison_of(summaries, flights, first),
        "difference": None if job else difference_of(recordings),
    }
    return columns.container(header)


def title_of(recordings: Sequence[Trace]) -> str:
    """The page's title: the files' names, without their folders."""
    names = [visible(_name(trace.source)) for trace in recordings]
    return f"{names[0]} … {names[-1]}" if len(names) > 2 else " and ".join(names)


def one_file(data: bytes, title: str) -> str:
    """A page that holds its data, its script and its style, and may load nothing."""
    return page_of(_DATA.format(data=base64.b64encode(data).decode("ascii")), title)


def empty_page(title: str) -> str:
    """The same page without data: it asks the server that it came from."""
    return page_of(_DATA.format(data=""), title, connect="'self'")


def page_of(
    data: str,
    title: str,
    *,
    connect: str = "'none'",
    script: str = "viewer",
    runs_wasm: bool = False,
) -> str:
    """A page.

    Args:
        data: the elements that hold what its script needs.
        title: its title.
        connect, script, runs_wasm: see ``policy_of``.
    """
    parts = {
        "policy": policy_of(connect, script, runs_wasm=runs_wasm),
        "title": html_text(title),
        "style": (STATIC / "viewer.css").read_text(encoding="utf-8"),
        "data": data,
        "script": (STATIC / f"{script}.js").read_text(encoding="utf-8"),
    }
    return _PAGE.format(**parts)  # in one pass: a file may be called {script}


def policy_of(connect: str, script: str = "viewer", *, runs_wasm: bool = False) -> str:
    """What a page may do: run its own script and style, which it knows by their hashes, and nothing
    else.

    Args:
        connect: where it may ask for data: "'none'", or "'self'" for the page of a server.
        script: the name of its script, ``viewer`` or ``open``.
        runs_wasm: whether it compiles WebAssembly, which its script must hand over itself.
    """
    scripts = [_hash((STATIC / f"{script}.js").read_text(encoding="utf-8"))]
    if runs_wasm:
        scripts.append("'wasm-unsafe-eval'")
    style = (STATIC / "viewer.css").read_text(encoding="utf-8")
    return (
        f"default-src 'none'; script-src {' '.join(scripts)}; style-src {_hash(style)}; "
        f"connect-src {connect}; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"


def _devices(trace: Trace, device: int | None) -> list[int]:
    """Those that the page shows: the one that was asked for, else all that did anything, the
    fullest first.
    """
    # choose_device says what is wrong where there is no such device.
    if device is not None and choose_device(trace, device) is not None:
        return [device]
    used = [
        number
        for number, device_trace in trace.devices.items()
        if len(device_trace.events) or len(device_trace.allocations) or len(device_trace.segments)
    ]
    return sorted(used, key=lambda number: -trace.devices[number].requested.peak_bytes)


def _track(
    view: Attribution,
    rank: int | None,
    columns: Columns,
    sources: Sources | None,
    choices: Choices,
    flight: RankFlight | None,
    problems: Problems,
) -> dict[str, Any]:
    trace, chosen = view.trace, view.device
    with ThreadPoolExecutor(1) as beside:  # NumPy lets go of the interpreter for most of both
        explained = beside.submit(explain_recording, trace, device=chosen.device, view=view)
        track = track_of(view, columns, sources, flight, problems)
    limit = trace.meta.device(chosen.device).process_limit_bytes
    verdict = verdict_of(view, explained.result(), columns)
    if trace.profile is not None and trace.is_profiler_trace:
        verdict = with_profile(verdict, trace.profile, view, columns)
    return {
        **track,
        "source": visible(trace.source),
        "name": visible(_name(trace.source)),
        "rank": rank,
        "world_size": trace.meta.world_size,
        "gpu": visible(trace.device_name) if trace.device_name else None,
        "torch": visible(trace.torch_version) if trace.torch_version else None,
        "total_bytes": trace.total_bytes.get(chosen.device),
        "limit_bytes": limit if limit is not None else verdict["limit"],
        "settings": _settings(trace),
        "complete": trace.complete,
        "verdict": verdict,
        "what_if": lines_of(trace, chosen.device, choices.confs, columns),
    }


def _settings(trace: Trace) -> str | None:
    """The allocator's settings as they were given, "" for the default; None where the recording
    does not say.
    """
    if not trace.settings:
        return None
    return one_line(recorded_conf(trace.settings))


def _name(source: str) -> str:
    return source.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] or source


@dataclass(frozen=True, repr=False)
class Page:
    """One HTML file that shows recordings, with everything in it; nothing is loaded from anywhere.

    Attributes:
        title: the recordings' names.
        html: the whole page.
    """

    title: str
    html: str

    def save(self, path: str | os.PathLike[str]) -> str:
        """Writes the page, whole or not at all, and gives its path.

        Raises:
            OSError: it cannot be written.
        """
        name = os.fspath(path)
        with whole_file(name) as file:
            file.write(self.html.encode("utf-8", "backslashreplace"))
        return name

    def __repr__(self) -> str:
        size = format_size(len(self.html))
        return f"<Page {visible(self.title)}: {size}; .save('run.html') writes it>"

    def _repr_html_(self) -> str:
        """The page in a frame of its own, which cannot reach the notebook around it."""
        return (
            f'<iframe sandbox="allow-scripts" title="{html_text(self.title)}"'
            f' style="width:100%;height:{_HEIGHT}px;border:1px solid #8884"'
            f' srcdoc="{_attribute(self.html)}"></iframe>'
        )


def _attribute(page: str) -> str:
    """A page as the value of an attribute: its lines stay lines."""
    return page.replace("&", "&amp;").replace('"', "&quot;")
