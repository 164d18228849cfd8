"""Models that several threads built, one each, where one would do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import format_size

_IN_THREAD = re.compile(
    r"[/\\]threading\.py:(?:run|_bootstrap\w*)$|concurrent[/\\]futures[/\\]thread\.py:"
)
_LOADER = re.compile(r"[/\\]transformers[/\\]|[/\\]safetensors[/\\]|torch[/\\]serialization\.py")
"""Threads in which a library loads a model in parts."""
_NUMBERED = re.compile(r"\.\d+\.")
_FEWEST_MODELS = 3
_LEAST_SHARE = 0.5


@after_failure
def model_of_each_thread(scene: Scene) -> Iterator[Finding]:
    """The parameters that threads made, if they are most of what is in use, nothing trains them, and several models
    have layers of the same paths.
    """
    view, allocations = scene.view, scene.device.allocations
    rows = np.intersect1d(scene.advice_rows, view.names.of_kind(TensorKind.PARAMETER))
    stacks = scene.trace.stacks
    rows = rows[stacks.within(_IN_THREAD, allocations.stack[rows])]
    rows = rows[~stacks.within(_LOADER, allocations.stack[rows])]
    size_bytes = scene.bytes_of(rows)
    is_trained = len(view.names.of_kind(TensorKind.GRADIENT, TensorKind.OPTIMIZER_STATE)) > 0
    is_most = size_bytes >= max(_LEAST_SHARE * scene.advice_heap.requested_bytes, 1)
    if not is_most or is_trained:
        return
    frames = stacks.of(scene.ending_request.stack)
    is_building = any(frame.function == "__init__" for frame in frames)
    models = _models_with_one_layer(view.names.name(row) for row in rows.tolist())
    if models < _FEWEST_MODELS:
        return
    saved_bytes = size_bytes - size_bytes // models
    yield Finding(
        id="model_of_each_thread",
        verdict=Verdict.LIKELY if is_building else Verdict.POSSIBLE,
        title=f"{scene.part_of_heap(size_bytes)} are weights of {models} models of one kind, or"
        " more, that were built in threads",
        bytes=saved_bytes,
        place=view.place_of_block(int(rows[0])),
        evidence=("nothing trains them",),
        fix="if their weights are the same, build one before the threads start (or once, under a"
        " lock), and let all of them use it: a forward pass without gradients changes nothing in"
        f" it (at least {format_size(saved_bytes)} less)",
        extent=scene.extent(rows),
    )


def _models_with_one_layer(names: Iterable[str]) -> int:
    """In how many models there is a parameter of one path that leads through a numbered layer: the layers of a model
    that is being built have names of their own, and no such path.
    """
    paths = (name.partition(".")[2] for name in names)
    return max(Counter(path for path in paths if _NUMBERED.search(path)).values(), default=0)
