"""Names: which allocation is which tensor, where the recording names tensors."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vramlens.leak.claim import with_article
from vramlens.trace import (
    AT_THE_END,
    NO_TENSORS,
    DeviceTrace,
    ParameterUse,
    TensorKind,
    TensorNames,
    Trace,
)

_FEW = 3
_SHAPE_ONLY = ("] tensor", "] slice", "] tensor]", "] slice]")
"""Ends of names without a place: float32[8, 1024] tensor, and its gradient (capture/names/tensor_names.py)."""
LAST_KEY = re.compile(r"\['(?P<key>[^\[\]']+)'\]$")
"""``Sweep.trials[3].weights['head.weight']``: the key of the innermost dict."""
_NAMELESS = frozenset({"list", "tuple", "dict", "set", "deque", "OrderedDict", "defaultdict"})
"""Names of what keeps tensors and has none of its own."""
IN_CALL = "local of "
"""Begins the name of what a function's variable keeps."""
SLICE = "(slice "
"""In the name of what a view keeps that looks at less than half of it."""
CACHE = re.compile(r"^(?P<size>unlimited )?lru_cache of ")
"""Begins the name of what a cache of results keeps."""
_LASTS = re.compile(rf"^(?!{IN_CALL}).*[.\[]")
"""The name of an attribute or an element: a variable's is one word, or begins with its function."""
_NUMBERED = re.compile(r"\[\d{1,9}\]$", re.ASCII)
_MOST_MOMENTS = 64
_NUMBER = re.compile(r"(?<=\.)[0-9]{1,9}(?=\.)", re.ASCII)


@dataclass(frozen=True, eq=False)
class Names:
    """The names of a device's allocations.

    Attributes:
        row: by allocation, the row of ``Trace.names``; -1 without a name.
        tensors: the names; without rows where the recording has none.
    """

    row: NDArray[np.int64]
    tensors: TensorNames

    @property
    def named(self) -> NDArray[np.bool_]:
        """One flag an allocation: whether it has a name."""
        return self.row >= 0

    @cached_property
    def placed(self) -> NDArray[np.bool_]:
        """One flag an allocation: whether its name says where the program keeps it.

        A tensor that nothing but a graph keeps is named by its type and shape alone.
        """
        flags = self.named
        by_row = np.array([not name.endswith(_SHAPE_ONLY) for name in self.tensors.name], np.bool_)
        flags[flags] = by_row[self.row[flags]]
        return flags

    @cached_property
    def of_program(self) -> NDArray[np.bool_]:
        """One flag an allocation: whether its name says where the program keeps it, and it is no
        parameter, gradient, buffer or state.
        """
        flags = np.zeros(len(self.row), np.bool_)
        flags[self.of_kind(TensorKind.TENSOR)] = True
        return flags & self.placed

    @cached_property
    def use(self) -> NDArray[np.uint8]:
        """By allocation, a ParameterUse: what training does with it; UNKNOWN for all but
        parameters.
        """
        use = np.full(len(self.row), ParameterUse.UNKNOWN, np.uint8)
        parameters = self.of_kind(TensorKind.PARAMETER)
        use[parameters] = self.tensors.use[self.row[parameters]]
        return use

    @cached_property
    def frozen(self) -> NDArray[np.bool_]:
        """One flag an allocation: whether it is a parameter that an optimizer has, and that
        requires no gradients, as far as the recording says it.
        """
        return self._flags(self.tensors.frozen)

    @cached_property
    def in_graph(self) -> NDArray[np.bool_]:
        """One flag an allocation: whether it is a tensor that an autograd graph made, and that
        keeps it, as far as the recording says it.
        """
        return self._flags(self.tensors.in_graph)

    def _flags(self, column: Sequence[bool]) -> NDArray[np.bool_]:
        """One flag an allocation: what a column of the table says of it; False where the table has
        none.
        """
        flags = np.zeros(len(self.row), np.bool_)
        if column:
            flags[self.named] = np.array(column, np.bool_)[self.row[self.named]]
        return flags

    def of_type(self, dtypes: Collection[str], *kinds: TensorKind) -> NDArray[np.int64]:
        """The allocations that are parameters or buffers with such elements, as far as the
        recording says it.
        """
        rows = self.of_kind(*kinds)
        type_of = self.tensors.dtype
        if not type_of:
            return rows[:0]
        is_such = [type_of[row] in dtypes for row in self.row[rows].tolist()]
        return rows[np.array(is_such, np.bool_)]

    def of_kind(self, *kinds: TensorKind) -> NDArray[np.int64]:
        """The allocations that are such tensors."""
        rows = np.flatnonzero(self.named)
        return rows[np.isin(self.tensors.kind[self.row[rows]], kinds)]

    def name(self, allocation: int) -> str:
        """The name of an allocation; "" without one."""
        return self._text_of(self.tensors.name, allocation)

    def kept_by(self, allocation: int) -> str:
        """What else leads to an allocation (``TensorNames.kept_by``); "" where nobody knows."""
        return self._text_of(self.tensors.kept_by, allocation)

    def unfrozen(self, allocation: int) -> str:
        """The module that was to freeze a parameter and does not (``TensorNames.unfrozen``); "" of
        others.
        """
        return self._text_of(self.tensors.unfrozen, allocation)

    def shape(self, allocation: int) -> str:
        """Type and sizes of a tensor (``TensorNames.shape``); "" where only its name may tell
        them.
        """
        return self._text_of(self.tensors.shape, allocation)

    def circle(self, allocation: int) -> str:
        """The garbage that alone keeps a tensor (``TensorNames.circle``); "" where more does."""
        return self._text_of(self.tensors.circle, allocation)

    def _text_of(self, column: Sequence[str], allocation: int) -> str:
        """What a column of the table says of an allocation; "" where it has no name, or the table
        no such column.
        """
        row = int(self.row[allocation])
        return column[row] if row >= 0 and column else ""


def names_of(trace: Trace, device: DeviceTrace) -> Names:
    """Joins the names to what was alive when tensors were named: where the recording ends, or at
    earlier moments too.

    A storage begins where its block does and is no larger. Where the events end early, what is
    alive then is not what was alive when the recording was written, and nothing is joined.
    """
    table = trace.names
    row = np.broadcast_to(np.int64(-1), len(device.allocations))
    if table is None or not len(table) or not device.whole:
        return Names(row, NO_TENSORS)
    own_rows = np.flatnonzero(table.device == device.device)
    row = np.array(row)
    moments = np.unique(table.time_us[own_rows])  # the end comes first: what it names is surest
    for moment in moments[:_MOST_MOMENTS].tolist():
        event = _event(device, moment)
        if event is not None:
            _join(device, table, own_rows[table.time_us[own_rows] == moment], event, row)
    return Names(row, table)


def _event(device: DeviceTrace, time_us: int) -> int | None:
    """The last event before a moment; the number of events for the end, None for before the
    first event.
    """
    if time_us == AT_THE_END:
        return len(device.events)
    last = int(np.searchsorted(device.clock_us, time_us, side="right")) - 1
    return last if last >= 0 and device.clock_us[last] else None  # events may be without times


def _join(
    device: DeviceTrace,
    table: TensorNames,
    own_rows: NDArray[np.int64],
    event: int,
    row: NDArray[np.int64],
) -> None:
    """Names what is alive right after an event, and has no name yet; the number of events is
    after the last one.
    """
    allocations = device.allocations
    ended = (
        allocations.free_requested < event
        if event >= len(device.events)
        else allocations.free_requested <= event
    )
    alive = np.flatnonzero((allocations.born <= event) & ~ended & (row < 0))
    if not len(alive) or not len(own_rows):
        return
    # Of several names of one storage a parameter's says most; the file's first is as good as any
    # other.
    order = own_rows[np.lexsort((own_rows, _RANK[table.kind[own_rows]], table.address[own_rows]))]
    addresses, first = np.unique(table.address[order], return_index=True)
    place = np.minimum(np.searchsorted(addresses, allocations.address[alive]), len(addresses) - 1)
    chosen = order[first[place]]
    fits = addresses[place] == allocations.address[alive]
    fits &= table.size_bytes[chosen] <= allocations.taken_bytes[alive]
    row[alive[fits]] = chosen[fits]


_RANK = np.zeros(len(TensorKind), np.uint8)
for _rank, _kind in enumerate(
    (
        TensorKind.PARAMETER,
        TensorKind.BUFFER,
        TensorKind.GRADIENT,
        TensorKind.OPTIMIZER_STATE,
        TensorKind.TENSOR,
    )
):
    _RANK[_kind] = _rank


def store_name(names: Names, allocations: NDArray[np.int64], sizes: NDArray[np.int64]) -> str:
    """The name, up to its first key, of what keeps most bytes of some allocations:
    ``Trainer.outputs`` of ``Trainer.outputs[3].loss``; "" where no name is that of most.
    """
    totals: dict[str, int] = {}
    is_placed = names.placed[allocations]
    for row, size in zip(allocations[is_placed].tolist(), sizes[is_placed].tolist(), strict=True):
        name = names.name(row).partition("[")[0]
        totals[name] = totals.get(name, 0) + size
    largest = max(totals, key=totals.__getitem__, default="")
    return largest if 2 * totals.get(largest, 0) > int(sizes.sum()) else ""


def stores_of_results(names: Names, allocations: NDArray[np.int64]) -> dict[str, list[int]]:
    """Where the program keeps results with their graphs, as far as that lasts, with these, the store with most first:
    ``Trainer.losses`` of ``Trainer.losses[3]``, and ``Stats.values['loss']`` of itself. A variable has the
    result of the latest step in most programs.
    """
    results: dict[str, list[int]] = {}
    is_kept = names.of_program.copy()
    is_kept[names.of_kind(TensorKind.BUFFER)] = True
    for row in allocations[names.in_graph[allocations] & is_kept[allocations]].tolist():
        if _LASTS.search(names.name(row)):
            results.setdefault(_NUMBERED.sub("", names.name(row)), []).append(row)
    return dict(sorted(results.items(), key=lambda entry: -len(entry[1])))


def store_words(name: str) -> str:
    """The name of what keeps tensors, with an article where it is none of the program's: ``a list``, ``the
    lru_cache of embed``.
    """
    if name in _NAMELESS or name.startswith(IN_CALL):
        return with_article(name)
    return f"the {name}" if CACHE.match(name) else name


def few_names(
    names: Names, allocations: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[str, ...]:
    """The names of some allocations, largest first, where at most three account for nearly all of
    their bytes.

    Names that differ in numbers only count as one: ``model.blocks.{0-11}.mlp.weight``.
    """
    rows = names.row[allocations]
    if 10 * int(sizes[rows >= 0].sum()) < 9 * int(sizes.sum()):
        return ()
    totals: dict[str, int] = {}
    numbers: dict[str, set[tuple[int, ...]]] = {}
    for row, size in zip(rows[rows >= 0].tolist(), sizes[rows >= 0].tolist(), strict=True):
        name = names.tensors.name[row]
        alike = _NUMBER.sub("{}", name)
        totals[alike] = totals.get(alike, 0) + size
        numbers.setdefault(alike, set()).add(tuple(int(digits) for digits in _NUMBER.findall(name)))
        if len(totals) > _FEW:
            return ()
    return tuple(
        _folded(alike, numbers[alike]) for alike in sorted(totals, key=lambda alike: -totals[alike])
    )


def _folded(alike: str, numbers: set[tuple[int, ...]]) -> str:
    """One name for all that differ in numbers only; each number's place holds its range."""
    parts = alike.split("{}")
    if len(parts) - 1 != len(next(iter(numbers))):  # braces of its own
        return alike
    ranges = [
        number_range({number_tuple[place] for number_tuple in numbers})
        for place in range(len(parts) - 1)
    ]
    return "".join(part + between for part, between in zip(parts, [*ranges, ""], strict=True))


def number_range(numbers: set[int]) -> str:
    """``3``, ``{0-11}``, ``{0,2,4}`` or, for many that are not in a row, ``{0…62}``."""
    ordered = sorted(numbers)
    if len(ordered) == 1:
        return str(ordered[0])
    if ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{{{ordered[0]}-{ordered[-1]}}}"
    if len(ordered) <= 4:
        return f"{{{','.join(map(str, ordered))}}}"
    return f"{{{ordered[0]}…{ordered[-1]}}}"
