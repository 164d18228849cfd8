"""Gradients of embeddings that are as large as the table, for the few rows that a step uses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.optimizer_state import most_states
from vramlens.analyses.attribution.phases import EMBEDDING_FORWARD, LINEAR_FORWARD, Phase
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.allocator_sizes import block_size
from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import counted, format_size, joined

_LEAST_SHARE = 0.2
"""Of what is in use, with the failed request."""
_FEW_ROWS = 0.05
"""Of a table: a language model's batch looks many of its words up."""
_MOST_ROWS = 0.5
"""Of a table: a graph's network looks all nodes up."""
_FEWEST_PASSES = 3
"""Backward passes before this one, whose gradients were small."""
_OF_PENALTIES = re.compile(r"^(?:Pow|Abs|Norm|LinalgVectorNorm)Backward")
"""What computes with each entry of a weight alone: no look-up, and no product with it."""
_SHOWN = 2
"""Tables that are named."""
_EVIDENCE = "an embedding's gradient is dense unless it is made with sparse=True"
_FIX = (
    "make it nn.Embedding(..., sparse=True), and give the table an optimizer that takes sparse"
    " gradients: SGD and Adagrad do, torch.optim.SparseAdam in the place of Adam and AdamW (weight"
    " decay and clip_grad_norm_ do not take them)"
)


@after_failure
def dense_embedding_gradient(scene: Scene) -> Iterator[Finding]:
    """The table whose gradient was asked for when memory ran out in a backward pass, or the tables whose
    gradients are there when memory runs out, if these are large.
    """
    table = _table_of(scene, scene.ending_request.size_bytes) if _is_in_backward(scene) else ""
    findings = (list(_of_new_term(scene, table)) or list(_asked_for(scene, table))) if table else []
    yield from findings or _alive(scene)


def _of_new_term(scene: Scene, table: str) -> Iterator[Finding]:
    """The gradients as large as a table that this backward pass makes, and those of earlier steps did not, where it is
    no look-up's.
    """
    request, allocations, phases = scene.ending_request, scene.device.allocations, scene.view.phases
    is_as_large = allocations.requested_bytes == request.size_bytes
    large_rows = np.flatnonzero(is_as_large & (phases.phase == Phase.BACKWARD))
    is_earlier = allocations.born[large_rows] < phases.span_start[-1]
    earlier_passes, node = len(phases.span_start) - 1, scene.ending_node
    is_penalty = _OF_PENALTIES.match(node) is not None and _looks_few_up(scene, table)
    if is_earlier.any() or (earlier_passes < _FEWEST_PASSES and not is_penalty):
        return
    rows = np.intersect1d(large_rows, scene.advice_rows)
    if "Embedding" in node or not (node or len(rows)):
        return  # a look-up whose gradient is dense, as where the table was frozen before
    size_bytes = scene.bytes_of(rows) + request.size_bytes
    if size_bytes < _LEAST_SHARE * scene.wanted_bytes:
        return
    yield Finding(
        id="dense_embedding_gradient",
        verdict=Verdict.LIKELY,
        title=f"this backward pass makes gradients for the whole of {table},"
        f" {_sizes(request.size_bytes, size_bytes)}{_not_before(earlier_passes)}",
        bytes=size_bytes,
        place=_line_of_term(scene, request.size_bytes) or scene.failed_place,
        evidence=(
            "a term of the loss that uses the whole table makes its gradient dense, also with"
            " sparse=True",
            *([f"memory ran out in {node}, which does not look rows up"] if is_penalty else []),
        ),
        fix="find the term of the loss that uses the whole"
        f" table{', new in this step' if earlier_passes else ''}, such as a penalty"
        " weight.pow(2).sum(), and compute it, of each table in it, on the rows that the step looks"
        f" up, which makes the term smaller ({format_size(size_bytes)} less)",
        extent=scene.extent(rows),
    )


def _not_before(earlier_passes: int) -> str:
    earlier = counted(earlier_passes, "earlier one")
    return f"; {earlier} made none as large" if earlier_passes else ""


def _line_of_term(scene: Scene, size_bytes: int) -> Place | None:
    """The line of the last forward pass that made something as large as a table; None without one."""
    allocations, phases = scene.device.allocations, scene.view.phases
    is_term = (allocations.born < phases.span_start[-1]) & (phases.phase != Phase.BACKWARD)
    is_term &= allocations.born > scene.last_backward_end
    is_term &= allocations.requested_bytes == size_bytes
    parts = scene.view.names.of_kind(TensorKind.PARAMETER, TensorKind.OPTIMIZER_STATE)
    rows = np.setdiff1d(np.flatnonzero(is_term), parts)
    return scene.view.place_of_block(int(rows[-1])) if len(rows) else None


def _sizes(each_bytes: int, total_bytes: int) -> str:
    if each_bytes == total_bytes:
        return format_size(each_bytes)
    return (
        f"{format_size(each_bytes)} each, {format_size(total_bytes)} with the request that failed"
    )


def _looks_few_up(scene: Scene, table: str) -> bool:
    """Whether this pass looks only a part of a table's rows up."""
    row = _tables(scene)[table]
    return _rows_looked_up(scene, table, row, since=scene.last_backward_end) <= _MOST_ROWS


def _asked_for(scene: Scene, table: str) -> Iterator[Finding]:
    request_bytes = scene.ending_request.size_bytes
    if request_bytes < _LEAST_SHARE * scene.wanted_bytes:
        return
    yield Finding(
        id="dense_embedding_gradient",
        verdict=Verdict.LIKELY,
        title=f"the gradient of {table} is as large as the table: {format_size(request_bytes)} for"
        " the rows of one step, and as much again for each further look-up",
        bytes=request_bytes,
        place=scene.failed_place,
        evidence=(_EVIDENCE,),
        fix=f"{_FIX}: at least {format_size(request_bytes)} less",
    )


def _alive(scene: Scene) -> Iterator[Finding]:
    """The gradients that are there of tables of which a step looks few rows up."""
    view, tables = scene.view, _tables(scene)
    gradients = np.intersect1d(view.names.of_kind(TensorKind.GRADIENT), scene.advice_rows)
    row_by_name = {view.names.name(row): row for row in gradients.tolist()}
    gradient_of = {
        table: row_by_name[f"grad[{table}]"]
        for table, row in tables.items()
        if f"grad[{table}]" in row_by_name and _rows_looked_up(scene, table, row) <= _FEW_ROWS
    }
    rows = np.array(list(gradient_of.values()), np.int64)
    size_bytes = scene.bytes_of(rows)
    if not gradient_of or size_bytes < _LEAST_SHARE * scene.wanted_bytes:
        return
    is_one = len(gradient_of) == 1
    yield Finding(
        id="dense_embedding_gradient",
        verdict=Verdict.LIKELY,
        title=f"{'the gradient of' if is_one else 'gradients of'} {_listed(list(gradient_of))}"
        f" {'is as large as the table' if is_one else 'are as large as the tables'}:"
        f" {scene.part_of_heap(size_bytes)} for the few rows of one step",
        bytes=size_bytes,
        place=view.place_of_block(tables[next(iter(gradient_of))]),
        evidence=(_EVIDENCE,),
        fix=_fix_of_optimizer(scene, list(gradient_of), size_bytes)
        or f"{_FIX}: about {format_size(size_bytes)} less",
        extent=scene.extent(rows),
    )


def _fix_of_optimizer(scene: Scene, tables: Sequence[str], gradient_bytes: int) -> str:
    """What to do where the first step makes states as large as the tables, so that sparse gradients alone
    are not enough; "" elsewhere.
    """
    phases = scene.view.phases
    limit_bytes = None if scene.failure is None else scene.failure.limit_low_bytes
    is_in_optimizer = phases.phase[scene.advice_rows[-1]] == Phase.OPTIMIZER
    table_bytes = scene.bytes_of([_tables(scene)[table] for table in tables])
    state_bytes = most_states(scene.view) * table_bytes
    in_use_bytes = scene.advice_heap.requested_bytes - gradient_bytes + state_bytes
    if limit_bytes is None or not is_in_optimizer or in_use_bytes <= limit_bytes:
        return ""
    return (
        "make the tables smaller: where ids have gaps, as raw numbers have, number those that occur"
        " 0, 1, 2, … (np.unique(ids, return_inverse=True)) before max() + 1 is the number of rows,"
        f" or hash them. sparse=True alone ({format_size(gradient_bytes)} less) is not enough with"
        f" torch.optim.SparseAdam, whose states take {format_size(state_bytes)}; with plain SGD it"
        " is"
    )


def _listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - _SHOWN
    return joined([*names[:_SHOWN], f"{more:,} more"] if more > 0 else names)


def _is_in_backward(scene: Scene) -> bool:
    phases, event = scene.view.phases, scene.advice_event
    return bool(((phases.span_start <= event) & (phases.span_end >= event)).any())


def _table_of(scene: Scene, size_bytes: int) -> str:
    """The name of the embedding's weight of that size; "" without one."""
    for name, row in _tables(scene).items():
        row_bytes = int(scene.device.allocations.requested_bytes[row])
        if block_size(row_bytes) == block_size(size_bytes):
            return name
    return ""


def _tables(scene: Scene) -> dict[str, int]:
    """The weights of embeddings, by name; none where a linear layer may share one: then its gradient is
    dense whatever the embedding says.
    """
    names = scene.view.names
    parameters = {names.name(row): row for row in names.of_kind(TensorKind.PARAMETER).tolist()}
    linear = _modules_of(scene, _rows_within(scene, LINEAR_FORWARD))
    if any(f"{path}.weight" not in parameters for path in linear):
        return {}
    looked_up = _modules_of(scene, _rows_within(scene, EMBEDDING_FORWARD))
    return {name: row for name, row in parameters.items() if name.rpartition(".")[0] in looked_up}


def _rows_looked_up(scene: Scene, table: str, row: int, since: int = -1) -> float:
    """The most rows that a call of an embedding looked up after an event, as a share of its table's."""
    modules, allocations = scene.view.modules, scene.device.allocations
    results = _rows_within(scene, EMBEDDING_FORWARD)
    results = results[allocations.born[results] > since]
    is_of_table = [
        modules.paths[module] == table.rpartition(".")[0]
        for module in modules.module[results].tolist()
    ]
    sizes = allocations.requested_bytes
    looked_up = sizes[results[np.array(is_of_table, np.bool_)]]
    return float(looked_up.max(initial=0) / sizes[row])


def _rows_within(scene: Scene, pattern: re.Pattern[str]) -> NDArray[np.int64]:
    """The requests of modules that went through such a frame."""
    stack = scene.device.allocations.stack
    return np.flatnonzero(scene.trace.stacks.within(pattern, stack) & scene.view.modules.marked)


def _modules_of(scene: Scene, rows: NDArray[np.int64]) -> set[str]:
    modules = scene.view.modules
    return {modules.paths[module] for module in np.unique(modules.module[rows]).tolist()}
