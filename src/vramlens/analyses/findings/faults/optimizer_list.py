"""Temporaries of an optimizer for all parameters at once: what its foreach form makes, and lists that a
program's own optimizer builds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from vramlens.analyses.failure.first_step.optimizer_lists import rest_of_list, size_of_list
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.usage import rows_of_lines
from vramlens.analyses.memory.heap import LineBytes
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.allocator_sizes import block_size
from vramlens.ground.verdict import Verdict
from vramlens.trace import OutOfMemory, TensorKind
from vramlens.units import format_size

_FOREACH = re.compile(r"torch[/\\]optim[/\\](?P<file>\w+)\.py$")
_FUSED = ("adam", "adamw", "sgd")
"""Modules of PyTorch's optimizers that have a fused form, which makes no such lists."""
_LIST_OF_ALL = re.compile(r"^\w+\s*=\s*\[.+\sfor\s.+\]$")
"""A list that one statement builds and that a local variable holds."""
_FEWEST = 4
"""Entries of a list: fewer have the sizes of parameters by chance."""
_LEAST_SHARE = 0.1
"""Of what is in use."""


@after_failure
def optimizer_list(scene: Scene) -> Iterator[Finding]:
    """The list of temporaries that was being made when the request failed; or the lists that the
    program made itself, an entry for each parameter.
    """
    yield from list(_foreach_list(scene, scene.ending_request)) or _own_lists(scene)


def _foreach_list(scene: Scene, request: OutOfMemory) -> Iterator[Finding]:
    """The list of an optimizer of PyTorch's."""
    innermost = scene.trace.stacks.of(request.stack)[:1]
    optimizer = _FOREACH.search(innermost[0].file) if innermost else None
    if optimizer is None or not innermost[0].function.startswith("_multi_tensor_"):
        return
    rest_bytes = rest_of_list(scene.view, request)
    if not rest_bytes:
        return
    list_bytes = rest_bytes + size_of_list(scene.view, request)
    form = "fused=True" if optimizer["file"] in _FUSED else "foreach=False"
    yield Finding(
        id="optimizer_list",
        verdict=Verdict.LIKELY,
        title=f"The optimizer's step makes a temporary of every parameter at once: "
        f"{format_size(list_bytes)}",
        bytes=list_bytes,
        place=scene.view.place_of_stack(request.stack),
        evidence=(
            "this is the foreach form, the default on a GPU; parameters, gradients and state stay "
            "beside it",
            f"{format_size(rest_bytes)} of the list were still to come",
        ),
        fix=f"pass {form} to the optimizer{_without_foreach(form)}: it works without the list (up"
        f" to {format_size(list_bytes)} less in its step)",
    )


def _own_lists(scene: Scene) -> Iterator[Finding]:
    """The lists that lines of the program made after the last backward pass, as large as all parameters."""
    view, allocations = scene.view, scene.device.allocations
    parameters = view.names.of_kind(TensorKind.PARAMETER)
    sizes = set(map(block_size, allocations.requested_bytes[parameters].tolist()))
    ends = view.phases.ends_before(scene.advice_event)
    if len(parameters) < _FEWEST or not len(ends):
        return
    lists: list[LineBytes] = []
    for line in scene.advice_heap.by_line:
        if not _LIST_OF_ALL.search(scene.source_of(line.place)):
            continue
        rows = rows_of_lines(scene, {line.place})
        own_sizes = set(map(block_size, allocations.requested_bytes[rows].tolist()))
        is_new = len(rows) >= _FEWEST and bool((allocations.born[rows] >= ends.max()).all())
        if is_new and own_sizes <= sizes:
            lists.append(line)
    size_bytes = sum(line.bytes for line in lists)
    if not lists or size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    yield Finding(
        id="optimizer_list",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are lists that the step builds, with an entry"
        " for each parameter, beside gradients and state",
        bytes=size_bytes,
        place=lists[0].place,
        evidence=(f"one of them: {scene.source_of(lists[0].place)}",),
        fix="go through the parameters one at a time: compute the update of one, apply it, and go"
        f" on to the next (about {format_size(size_bytes)} less, and as much for each list still"
        " to come)",
        recurs=True,
    )


def _without_foreach(form: str) -> str:
    """PyTorch refuses an optimizer that is told to be both."""
    return " (and no foreach=True)" if form == "fused=True" else ""
