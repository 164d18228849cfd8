"""Table: one row an allocation, with all that vramlens knows of it, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category, Certainty
from vramlens.analyses.attribution.phases import Phase
from vramlens.ground.verdict import Verdict
from vramlens.report.wording import visible

_LONGEST_TEXT = 2000


@dataclass(frozen=True, eq=False)
class Numbers:
    """A column of numbers.

    Attributes:
        values: one a row.
        known: False where there is none; None where all are known.
    """

    values: NDArray[np.integer]
    known: NDArray[np.bool_] | None = None


@dataclass(frozen=True, eq=False)
class Words:
    """A column of texts, of which there are few.

    Attributes:
        texts: the different ones; each is one line.
        code: by row a number into ``texts``; -1 where there is none.
    """

    texts: tuple[str, ...]
    code: NDArray[np.int64]


Column = Numbers | Words


def table_of(view: Attribution) -> dict[str, Column]:
    """The allocations of a device, by column; the units are in the names, times since the epoch.

    What the recording cannot tell is absent: when something was born that is older, and when it
        died that outlived it.
    """
    device = view.device
    rows, events = device.allocations, len(device.events)
    file, line, function = _places(view)
    peak = device.requested.peak_event
    is_at_peak = (rows.born <= peak) & (rows.died > peak)
    line_verdict = np.where(line.values > 0, view.phases.inferred, -1)
    return {
        "device": Numbers(np.full(len(rows), device.device, np.int64)),
        "born_event": Numbers(rows.born, rows.born >= 0),
        "free_requested_event": _until(rows.free_requested, events),
        "died_event": _until(rows.died, events),
        "born_us": _time(view, rows.born),
        "died_us": _time(view, rows.died),
        "requested_bytes": Numbers(rows.requested_bytes),
        "taken_bytes": Numbers(rows.taken_bytes),
        "address": Numbers(rows.address),
        "stream": Numbers(rows.stream),
        "step": Numbers(view.step, view.step >= 0),
        "phase": Words(_lower(Phase), view.phases.phase.astype(np.int64)),
        "category": Words(_lower(Category), view.categories.category.astype(np.int64)),
        "category_verdict": Words(_lower(Certainty), view.categories.certainty.astype(np.int64)),
        "module": Words(tuple(map(_line, view.modules.paths)), np.asarray(view.modules.module)),
        "name": _names(view),
        "region": _regions(view),
        "file": file,
        "line": line,
        "function": function,
        "line_verdict": Words(
            tuple(verdict for verdict in Verdict if verdict.is_sure), line_verdict
        ),
        "alive_at_peak": Words(("false", "true"), is_at_peak.astype(np.int64)),
    }


def _regions(view: Attribution) -> Words:
    strings = view.trace.stacks.strings
    regions, region_of_row = np.unique(view.region, return_inverse=True)
    texts = tuple(_line(strings[text]) if text >= 0 else "" for text in regions.tolist())
    return Words(texts, np.where(view.region >= 0, region_of_row.reshape(-1), -1))


def _until(events: NDArray[np.int64], never: int) -> Numbers:
    return Numbers(events, (events >= 0) & (events < never))


def _time(view: Attribution, events: NDArray[np.int64]) -> Numbers:
    """When events happened, where they did and the recording has times."""
    clock = view.device.clock_us
    if not len(clock):
        return Numbers(np.zeros(len(events), np.int64), np.zeros(len(events), np.bool_))
    happened = (events >= 0) & (events < len(clock))
    times = clock[np.clip(events, 0, len(clock) - 1)]
    return Numbers(times, happened & (times > 0))


def _places(view: Attribution) -> tuple[Words, Numbers, Words]:
    """File, line and function of the user line; that of the forward pass where the backward pass
    has none.
    """
    if not len(view.phases.frame):
        none = np.zeros(0, np.int64)
        return Words((), none), Numbers(none, none > 0), Words((), none)
    frames, place_of_row = np.unique(view.phases.frame, return_inverse=True)
    place_of_row = place_of_row.reshape(-1)
    places = [view.place(frame) for frame in frames.tolist()]
    has_place = np.array([place is not None for place in places], np.bool_)
    lines = np.array([place.line if place is not None else 0 for place in places], np.int64)
    files = tuple(_line(place.file) if place is not None else "" for place in places)
    functions = tuple(_line(place.function) if place is not None else "" for place in places)
    code = np.where(has_place[place_of_row], place_of_row, -1)
    line = lines[place_of_row]
    return Words(files, code), Numbers(line, line > 0), Words(functions, code)


def _names(view: Attribution) -> Words:
    names, row = view.names.tensors.name, np.asarray(view.names.row)
    used, text_of_row = np.unique(row, return_inverse=True)
    texts = tuple(_line(names[name_row]) if name_row >= 0 else "" for name_row in used.tolist())
    return Words(texts, np.where(row >= 0, text_of_row.reshape(-1), -1))


def _lower(kinds: type[Phase] | type[Category] | type[Certainty]) -> tuple[str, ...]:
    return tuple(kind.name.lower() for kind in kinds)


def _line(text: str) -> str:
    return visible(text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…")
