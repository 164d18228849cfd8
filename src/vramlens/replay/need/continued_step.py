"""A failed step continued to its end: the recorded requests, then those that the earlier step
made after that point.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.phases import Phase
from vramlens.replay.need.done_without import dispensable_rows, retry_releases
from vramlens.trace import Action

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vramlens._native import Replay
    from vramlens.analyses.attribution.attribution import Attribution
    from vramlens.analyses.failure.step_scaling import Scaling
    from vramlens.analyses.failure.step_template import EventSpan, Template
    from vramlens.replay.proof import Proven

_FREES = (Action.FREE_REQUESTED, Action.FREE_COMPLETED)
_FAR_AWAY = 2**52
"""Where blocks are said to lie that were never handed out: beyond all that a driver gives."""
_APART = 2 * 2**20
_BY_EVENT = ("action", "address", "size", "stream", "emptied", "allocation", "released_pool")


@dataclass(frozen=True, eq=False)
class Continued:
    """The requests of a run that went on after its failure.

    Attributes:
        replay: to be asked what they lead to.
        unrefused: the same without the requests whose failure the program survived.
        failed_event: the request that failed is this one among its events.
        step_end: the event at which the failed step is done.
        sizes_after: requested bytes from the failed request on, by event from it on.
        requested_bytes, done_bytes: of all the step's requests, and of those served before the
            failure.
        floor_bytes: the most bytes alive at once.
        renewed_bytes: what is taken to give way to what this step makes of its kind (a variable
            that is set again), although the earlier step was the first of that kind.
        columns: the requests, as ``Replay`` takes them.
        template_rows: by row of them, the recorded allocation that it is, or repeats.
    """

    replay: Replay
    unrefused: Replay
    failed_event: int
    step_end: int
    sizes_after: NDArray[np.int64]
    requested_bytes: int
    done_bytes: int
    floor_bytes: int
    renewed_bytes: int
    columns: Mapping[str, NDArray[Any]]
    template_rows: NDArray[np.int64]

    def run(self, native: Mapping[str, Any], addresses: int, seed: int = 0) -> dict[str, int]:
        """What the requests lead to, under an allocator's settings and limit."""
        return self.replay.run(native, addresses=addresses, completion=0, seed=seed)

    def bytes_until(self, event: int) -> int:
        """Requested bytes that are served from the failed request on before an event."""
        return int(self.sizes_after[: max(0, event - self.failed_event)].sum())


@dataclass(frozen=True, slots=True)
class _Renewed:
    """Places of the template whose memory gives way to what is made there again.

    Attributes:
        places: by number of the template's row.
        last: where all of it is made again; -1 of none.
        bytes: of what gives way.
    """

    places: tuple[int, ...]
    last: int
    bytes: int


class _Events:
    """Events and rows that come after the recorded ones."""

    def __init__(
        self,
        view: Attribution,
        columns: Mapping[str, NDArray[Any]],
        first_event: int,
        first_row: int,
    ):
        self._view, self._columns = view, columns
        self._first_event, self.first_row = first_event, first_row
        self.action: list[int] = []
        self.row: list[int] = []
        self.size: list[int] = []
        self.template_rows: list[int] = []  # by new row: the recorded row that it repeats
        self.born: list[int] = []
        self.row_size: list[int] = []

    @property
    def next_event(self) -> int:
        """The number of the event that comes next."""
        return self._first_event + len(self.action)

    def request(self, like: int, size: int) -> int:
        """A new request; gives its row."""
        row = self.first_row + len(self.template_rows)
        self.template_rows.append(like)
        self.born.append(self.next_event)
        self.row_size.append(size)
        self._add(Action.ALLOC, row, size)
        return row

    def free(self, action: int, row: int) -> None:
        """A step of giving a row back."""
        new = row - self.first_row
        sizes = self._view.device.allocations.requested_bytes
        self._add(action, row, self.row_size[new] if new >= 0 else int(sizes[row]))

    def _add(self, action: int, row: int, size: int) -> None:
        self.action.append(int(action))
        self.row.append(row)
        self.size.append(size)

    def appended(self) -> dict[str, NDArray[Any]]:
        """The columns with the recorded events first."""
        columns, allocations = self._columns, self._view.device.allocations
        template_rows = np.array(self.template_rows, np.int64)
        row = np.array(self.row, np.int64)
        taken = np.array(self.row_size, np.uint64)
        apart = -(-taken.astype(np.int64) // _APART) * _APART + _APART
        address = (_FAR_AWAY + np.cumsum(apart) - apart).astype(np.uint64)
        stream = allocations.stream[template_rows] if len(template_rows) else np.zeros(0, np.uint64)
        new = np.maximum(row - self.first_row, 0)
        is_new = row >= self.first_row
        old = np.minimum(row, self.first_row - 1) if self.first_row else row * 0
        zeros = np.zeros(len(row), np.int64)
        by_event = {
            "action": np.array(self.action, np.int64),
            "address": np.where(is_new, address[new], columns["row_address"][old])
            if len(row)
            else zeros,
            "size": np.array(self.size, np.int64),
            "stream": np.where(is_new, stream[new], columns["row_stream"][old])
            if len(row)
            else zeros,
            "emptied": zeros,
            "allocation": row,
            "released_pool": zeros,
        }
        by_row = {
            "row_born": np.array(self.born, np.int64),
            "row_address": address,
            "row_requested": taken,
            "row_taken": taken,
            "row_stream": stream,
            "row_pool": columns["row_pool"][template_rows],
            "row_scratch": columns["row_scratch"][template_rows],
            "row_pending": np.zeros(len(template_rows), np.uint8),
        }
        joined = dict(columns)
        for name, more in {**by_event, **by_row}.items():
            count = self._first_event if name in _BY_EVENT else self.first_row
            column = columns[name][:count]
            joined[name] = np.ascontiguousarray(np.concatenate((column, more.astype(column.dtype))))
        return joined


class Continuation:
    """Makes the events that follow a failure, step by step, from the template's."""

    def __init__(
        self, view: Attribution, proven: Proven, template: Template, scaling: Scaling
    ) -> None:
        self._view, self._template, self._scaling, self._proven = view, template, scaling, proven
        device = view.device
        self._failed_event = template.failed.end
        rows = int(np.searchsorted(device.allocations.born, self._failed_event))
        columns: dict[str, NDArray[Any]] = dict(proven.requests.columns)
        columns["row_scratch"] = dispensable_rows(view, columns["row_scratch"])
        # The replay makes those of its own limit; else they would pass for the program's doing.
        columns["action"] = columns["action"].copy()
        columns["action"][retry_releases(device, proven.recorded.limit.bytes)] = Action.OTHER
        self._events = _Events(view, columns, self._failed_event, rows)
        self._alive = set(
            np.flatnonzero(device.allocations.died[:rows] >= self._failed_event).tolist()
        )
        self._place = {int(row): n for n, row in enumerate(template.span.rows.tolist())}
        self._key = template.span.keys
        self._starts = [span.start for span in template.spans]
        partners = template.partner.tolist()
        self._now = {n: row for n, row in enumerate(partners) if row >= 0}
        self._earlier: dict[int, int] = {}
        self._lasting = self._rows_that_last()
        self._renewed = self._places_renewed()

    def finished(self, more_steps: int) -> Continued:
        """The run continued to the end of the failed step, and so many like it beyond."""
        span, position = self._template.span, self._template.position
        begin = int(self._view.device.allocations.born[span.rows[position]])
        sizes = self._scaling.sizes
        self._copy(span, begin, sizes)
        step_end = self._events.next_event
        requested_in_step = sum(self._events.row_size)
        floor = most_alive(self._events.appended())
        for _ in range(more_steps):
            self._begin_next()
            self._copy(span, span.start, sizes)
        columns = self._events.appended()
        action = np.array(self._events.action, np.int64)
        requested = np.where(action == Action.ALLOC, np.array(self._events.size, np.int64), 0)
        done = int(self._view.device.allocations.requested_bytes[self._template.failed.rows].sum())
        replay = self._proven.replay_of(columns)
        unrefused_columns = without_refusals(columns)
        return Continued(
            replay=replay,
            unrefused=self._proven.replay_of(unrefused_columns) if unrefused_columns else replay,
            failed_event=self._failed_event,
            step_end=step_end,
            sizes_after=requested,
            requested_bytes=done + requested_in_step,
            done_bytes=done,
            floor_bytes=floor,
            renewed_bytes=self._renewed.bytes,
            columns=columns,
            template_rows=np.append(
                np.arange(self._events.first_row), np.array(self._events.template_rows, np.int64)
            ),
        )

    def _copy(self, span: EventSpan, begin: int, sizes: NDArray[np.int64]) -> None:
        """Repeats the template's events from one on to its end."""
        device = self._view.device
        actions = device.events.action[begin : span.end].tolist()
        rows = device.allocation_of_event[begin : span.end].tolist()
        for action, row in zip(actions, rows, strict=True):
            if row < 0:
                continue
            place = self._place.get(row)
            if action == Action.ALLOC and place is not None:
                if place not in self._lasting:
                    self._request(place, row, int(sizes[place]))
            elif action in _FREES:
                target = self._now.get(place) if place is not None else self._from_before(row)
                if target in self._alive:
                    self._events.free(action, target)
                    if action == Action.FREE_COMPLETED:
                        self._alive.discard(target)

    def _request(self, place: int, row: int, size: int) -> None:
        self._now[place] = self._events.request(row, size)
        self._alive.add(self._now[place])
        if not self._template.number and not self._template.is_part:
            # The first step replaced nothing: what it made and kept in a variable goes when that is
            # set again.
            self._give_up(self._counterpart(place, row))
        if place == self._renewed.last:
            for earlier in self._renewed.places:
                self._give_up(self._counterpart(earlier, int(self._template.span.rows[earlier])))

    def _counterpart(self, place: int, row: int) -> int | None:
        """What the step before the one that is copied made in a place of the template."""
        return self._earlier.get(int(self._key[place])) if self._earlier else row

    def _give_up(self, row: int | None) -> None:
        if row is not None and row in self._alive:
            self._events.free(Action.FREE_REQUESTED, row)
            self._events.free(Action.FREE_COMPLETED, row)
            self._alive.discard(row)

    def _begin_next(self) -> None:
        """What the step that ends here left behind is what the next one finds."""
        if not self._template.number:
            self._replace_the_first_step()
        self._earlier = {int(self._key[place]): row for place, row in self._now.items()}
        self._now = {}
        # What the template built and keeps was not there in the failed step's own copy: nor is it
        # in the next.
        partner = self._template.partner
        unpaired = np.flatnonzero(partner[: self._template.position] < 0)
        self._lasting |= set(unpaired.tolist())

    def _replace_the_first_step(self) -> None:
        """Gives up what the first step made, does not last, and was made again meanwhile."""
        for place, row in enumerate(self._template.span.rows.tolist()):
            if place in self._now and place not in self._lasting:
                self._give_up(row)

    def _from_before(self, row: int) -> int | None:
        """What stands for an allocation that an earlier span than the template made: as much
        earlier than this one.
        """
        spans, number = self._template.spans, self._template.number
        span_of_row = bisect_right(self._starts, int(self._view.device.allocations.born[row])) - 1
        back = number - span_of_row
        if span_of_row < 0 or back < 1:
            return None
        at = int(np.searchsorted(spans[span_of_row].rows, row))
        if at >= len(spans[span_of_row].rows) or spans[span_of_row].rows[at] != row:
            return None
        key = int(spans[span_of_row].keys[at])
        if self._earlier:
            return self._earlier.get(key) if back == 1 else None
        return spans[len(spans) - 1 - back].row_of.get(key)

    def _places_renewed(self) -> _Renewed:
        """Where the template made what is still there and what no step before it made: a variable
        that is set every few steps. This step sets it again, and replaces all of it at once.
        """
        template, span = self._template, self._template.span
        allocations = self._view.device.allocations
        is_there = allocations.died[span.rows] >= self._failed_event
        is_there[list(self._lasting)] = False
        if not template.number or template.is_part or not is_there.any():
            return _Renewed((), -1, 0)
        earlier = [other.keys for other in template.spans[: template.number]]
        places = np.flatnonzero(is_there & ~np.isin(span.keys, np.concatenate(earlier)))
        if not len(places) or places[-1] < template.position:
            return _Renewed((), -1, 0)  # all of it is made again, and the earlier one still there
        renewed_bytes = int(allocations.requested_bytes[span.rows[places]].sum())
        return _Renewed(tuple(places.tolist()), int(places[-1]), renewed_bytes)

    def _rows_that_last(self) -> set[int]:
        """The template's rows that are made once in a program: the model, the optimizer's state,
        workspaces.
        """
        view, span = self._view, self._template.span
        allocations = view.device.allocations
        alive = allocations.died[span.rows] >= self._failed_event
        category = view.categories.category[span.rows]
        once = np.isin(
            category, (Category.OPTIMIZER_STATE, Category.PARAMETERS, Category.WORKSPACE)
        )
        once |= view.phases.phase[span.rows] == Phase.OPTIMIZER
        once |= view.phases.phase[span.rows] == Phase.OTHER
        if self._template.number:  # what each step leaves behind is left again
            before = self._template.spans[self._template.number - 1]
            once &= ~np.isin(span.keys, before.keys)
        return set(np.flatnonzero(alive & once).tolist())


def without_refusals(columns: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]] | None:
    """The columns without the requests that failed and that the program went on from; None where
    there are none.
    """
    refused = columns["action"] == Action.OOM
    if not refused.any():
        return None
    action = columns["action"].copy()
    action[refused] = Action.OTHER
    return {**columns, "action": action}


def most_alive(columns: Mapping[str, NDArray[Any]]) -> int:
    """The most requested bytes alive at once."""
    action, rows = columns["action"], columns["allocation"]
    sizes = columns["row_requested"].astype(np.int64)
    change = np.zeros(len(action), np.int64)
    born = action == Action.ALLOC
    gone = (action == Action.FREE_COMPLETED) & (rows >= 0)
    change[born] = sizes[rows[born]]
    change[gone] = -sizes[rows[gone]]
    base = int(sizes[columns["row_born"] < 0].sum())
    return base + int(np.cumsum(change).max(initial=0))
