"""Parameters that training changes: those will have gradients and optimizer state, frozen ones and
buffers will not.

A recording that vramlens made may say so. Else a finished backward pass has made the gradients of all of
them. Before one, adapters tell: low-rank pairs beside frozen weights. Else all parameters may be trained.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.optimizer_state import parameter_bytes
from vramlens.analyses.attribution.phases import Phase
from vramlens.trace import ParameterUse, TensorKind, TensorNames

if TYPE_CHECKING:
    from vramlens.analyses.attribution.attribution import Attribution

_ADAPTER = re.compile(r"(?:^|[._])(?:lora|adapter)s?(?:_|[.]|$)", re.IGNORECASE)
"""How libraries (peft, adapters, torchtune) call what they add to a frozen model."""
_PLAIN = frozenset(("weight", "bias"))
_THIN = 4
"""A packed weight is so many times as large as the low-rank pair beside it, at least."""


def trainable_bytes(view: Attribution, rows: NDArray[np.int64], event: int) -> int:
    """The most that parameters among these allocations take that are to have gradients, as far as
    is known at an event.
    """
    with_gradients = _bytes_of_uses(view, rows, ParameterUse.STEPPED, ParameterUse.UNSTEPPED)
    if with_gradients is not None:
        return with_gradients
    parameters = np.intersect1d(rows, view.names.of_kind(TensorKind.PARAMETER))
    sizes = view.device.allocations.requested_bytes
    most_bytes = int(sizes[parameters].sum()) if len(parameters) else parameter_bytes(view, rows)
    gradient_bytes = _gradients_of_a_whole_pass(view, event)
    if gradient_bytes:
        return min(most_bytes, gradient_bytes)
    adapters = adapter_names(view.trace.names)
    if adapters and len(parameters):
        is_adapter = [view.names.name(row) in adapters for row in parameters.tolist()]
        return int(sizes[parameters[is_adapter]].sum())
    return most_bytes


def stepped_bytes(view: Attribution, rows: NDArray[np.int64], event: int) -> int:
    """The most that parameters among these allocations take that an optimizer is to have state for, as far
    as is known at an event.
    """
    stepped = _bytes_of_uses(view, rows, ParameterUse.STEPPED)
    return trainable_bytes(view, rows, event) if stepped is None else stepped


def _bytes_of_uses(view: Attribution, rows: NDArray[np.int64], *uses: ParameterUse) -> int | None:
    """The parameters among these allocations of which training makes such use; None where the recording
    does not say what it does with any.
    """
    use = view.names.use[rows]
    if not (use != ParameterUse.UNKNOWN).any():
        return None
    return int(view.device.allocations.requested_bytes[rows[np.isin(use, uses)]].sum())


def _gradients_of_a_whole_pass(view: Attribution, event: int) -> int:
    """The gradients that the first backward pass left: it is over when a module's next forward, or
    an optimizer, has come; 0 where none is.
    """
    ended = view.phases.span_end[view.phases.span_end <= event]
    if not len(ended):
        return 0
    allocations = view.device.allocations
    is_next = (view.phases.phase == Phase.FORWARD) & view.modules.marked
    is_next |= view.phases.phase == Phase.OPTIMIZER
    following = allocations.born[is_next & (allocations.born >= ended[0])]
    following = following[following <= event]
    if not len(following):
        return 0
    alive = allocations.alive_after(int(following[0]) - 1)
    is_gradient = view.categories.category[alive] == Category.GRADIENTS
    return int(allocations.requested_bytes[alive[is_gradient]].sum())


def adapter_names(table: TensorNames | None) -> frozenset[str]:
    """The names of the parameters that adapters train; none where no adapter shows."""
    if table is None:
        return frozenset()
    is_parameter = table.kind == TensorKind.PARAMETER
    named = [table.name[row] for row in np.flatnonzero(is_parameter).tolist()]
    by_library = frozenset(name for name in named if _ADAPTER.search(name))
    return by_library or _beside_packed_weights(table)


def _beside_packed_weights(table: TensorNames) -> frozenset[str]:
    """The pairs of parameters whose module keeps its weight as a much larger buffer: packed, it is
    never trained.
    """
    pairs: dict[str, dict[str, int]] = defaultdict(dict)
    packed: dict[str, int] = defaultdict(int)
    kinds = table.kind.tolist()
    for name, kind, size in zip(table.name, kinds, table.size_bytes.tolist(), strict=True):
        path = name.rpartition(".")[0]
        if kind == TensorKind.PARAMETER:
            pairs[path][name] = size
        elif kind == TensorKind.BUFFER:
            packed[path] = max(packed[path], size)
    return frozenset(
        name
        for path, pair in pairs.items()
        if path and _are_low_rank(pair, packed[path])
        for name in pair
    )


def _are_low_rank(pair: dict[str, int], packed_bytes: int) -> bool:
    """Whether two parameters of a module stand beside its packed weight: a weight and its bias
    with a mask or a table do not.
    """
    own_names = {name.rpartition(".")[2] for name in pair}
    return len(pair) == 2 and own_names != _PLAIN and packed_bytes >= _THIN * max(pair.values())
