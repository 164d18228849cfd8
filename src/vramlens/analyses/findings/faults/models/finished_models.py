"""Models whose training is over, and that stay with gradients and optimizer state beside the next."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.names import IN_CALL
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import agreeing, counted, format_size, joined

_LEAST_SHARE = 0.1
_MOST_NAMED = 3
_FEWEST_PARTS = 4
"""Names of parameters that tell one class from others."""
_NUMBER = re.compile(r"_\d+$")
_BUILDS = re.compile(r"\b(?:[A-Z]\w*|(?:make|build|create|get|new|init)_?\w*)\(")


@dataclass(frozen=True, slots=True)
class _Model:
    """A model that is alive when memory runs out.

    Attributes:
        name: of its outermost module.
        sizes: of its parameters, in order.
        parts: the names of its parameters without its own.
        place: the line that made the first of its parameters.
        is_built_there: whether that line makes such objects, and does not only move them.
        built_from, built_until: the events at which the first and the last of them were made.
        last_run: the event of the last request inside of it; -1 where it never ran.
        caches: each ``lru_cache`` that has it or layers of it as arguments; none where they do not have all.
        call: the call of which it is a variable (``local of fit(), call 2``); "" where nobody knows.
        rows: its parameters, their gradients and their optimizer state.
        is_trained: whether it has gradients or state.
    """

    name: str
    sizes: tuple[int, ...]
    parts: frozenset[str]
    place: Place | None
    is_built_there: bool
    built_from: int
    built_until: int
    last_run: int
    caches: tuple[str, ...]
    call: str
    rows: NDArray[np.int64]
    is_trained: bool


@after_failure
def finished_models(scene: Scene) -> Iterator[Finding]:
    """The trained models that did not run again once another of the same shapes or parts was built."""
    models = sorted(_models(scene), key=lambda model: model.built_until)
    if not models:
        return
    newest = models[-1]
    finished = [model for model in models[:-1] if _is_finished(model, newest)]
    if not finished:
        return
    rows = np.concatenate([model.rows for model in finished])
    size_bytes = scene.bytes_of(rows)
    if size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    named = ", ".join(model.name for model in finished[:_MOST_NAMED])
    evidence = [f"parameters, gradients and optimizer state of {named}"]
    remedy = (
        "before the next is built, let go of model and optimizer (del; with Accelerate,"
        " accelerator.free_memory()), and keep of them what you need on the CPU"
    )
    if all(model.caches for model in finished):
        caches = sorted({cache for model in finished for cache in model.caches})
        evidence.append(_kept_by_caches(caches))
        what = agreeing(len(caches), "cache off that function", "caches off these functions")
        remedy = (
            f"take the {what} (on a method it keeps each self), or keep its results in the"
            " instance; then let go of model and optimizer before the next is built"
        )
    elif calls := _ended_calls(finished, newest):
        function = calls[0].removeprefix(IN_CALL).partition("(")[0]
        evidence.append(
            f"they are variables of calls of {function}() that have ended: a kept exception holds"
            " such, by its traceback"
        )
        remedy = (
            "where the program keeps an exception, keep its text instead (str(error)), or"
            " error.with_traceback(None)"
        )
    yield Finding(
        id="finished_models",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are {counted(len(finished), 'trained model')}"
        " that did not run again once the next was built",
        bytes=size_bytes,
        place=finished[0].place,
        evidence=tuple(evidence),
        fix=f"{remedy} (up to {format_size(size_bytes)} less)",
        extent=scene.extent(np.sort(rows)),
    )


def _ended_calls(finished: list[_Model], newest: _Model) -> list[str]:
    """The calls that have most of these models as variables, and are none that runs; none where few are known."""
    calls = [model.call for model in finished if model.call not in ("", newest.call)]
    calls = [call for call in calls if " " not in call.removeprefix(IN_CALL).partition("(")[0]]
    return calls if 2 * len(calls) >= len(finished) else []


def _kept_by_caches(caches: list[str]) -> str:
    """What says which caches keep the models."""
    if len(caches) == 1:
        return f"the {caches[0]} has them as arguments, and keeps them"
    named = [f"the {cache}" for cache in caches[:_MOST_NAMED]]
    more = len(caches) - _MOST_NAMED
    others = [counted(more, "more cache")] if more > 0 else []
    return f"{joined([*named, *others])} have them, or layers of them, as arguments, and keep these"


def _is_finished(model: _Model, newest: _Model) -> bool:
    """Whether a model was trained, and did not run since the newest of its shapes, or of its parts in other
    sizes, was begun.
    """
    classes = {_class_of(model), _class_of(newest)}
    is_of_class = model.parts == newest.parts and len(classes) == 1
    is_of_line = newest.is_trained and newest.is_built_there and model.place == newest.place
    is_of_line &= len(classes) == 1 or not all(name[:1].isupper() for name in classes)
    common_parts = model.parts & newest.parts if is_of_class or is_of_line else frozenset()
    is_alike = model.sizes == newest.sizes or len(common_parts) >= _FEWEST_PARTS
    return model.is_trained and is_alike and 0 <= model.last_run < newest.built_from


def _class_of(model: _Model) -> str:
    """Its class, as names have it: ``TwoTower_2`` is another TwoTower."""
    return _NUMBER.sub("", model.name)


def _models(scene: Scene) -> Iterator[_Model]:
    """Yields the models that have parameters among what is alive."""
    view, allocations, alive = scene.view, scene.device.allocations, scene.advice_rows
    marked = np.flatnonzero(view.modules.marked)
    parameters = np.intersect1d(alive, view.names.of_kind(TensorKind.PARAMETER))
    of_training = np.intersect1d(
        alive, view.names.of_kind(TensorKind.GRADIENT, TensorKind.OPTIMIZER_STATE)
    )
    roots = view.modules.root
    for root in np.unique(roots[parameters]).tolist():
        own = parameters[roots[parameters] == root]
        trained_rows = of_training[roots[of_training] == root]
        runs = allocations.born[marked[roots[marked] == root]]
        keepers = _keepers_of_all(map(view.names.kept_by, own.tolist()))
        call = next((keeper for keeper in keepers if keeper.startswith(IN_CALL)), "")
        place = view.place_of_block(int(own[0]))
        yield _Model(
            name=view.names.name(int(own[0])).partition(".")[0],
            sizes=tuple(sorted(allocations.requested_bytes[own].tolist())),
            parts=frozenset(view.names.name(row).partition(".")[2] for row in own.tolist()),
            place=place,
            is_built_there=_builds(scene, place),
            built_from=int(allocations.born[own].min()),
            built_until=int(allocations.born[own].max()),
            last_run=int(runs.max(initial=-1)),
            caches=() if call else keepers,
            call=call,
            rows=np.concatenate([own, trained_rows]),
            is_trained=len(trained_rows) > 0,
        )


def _builds(scene: Scene, place: Place | None) -> bool:
    """Whether a line makes an object, by what it calls; so does one whose text nobody knows."""
    text = scene.source_of(place)
    return place is not None and (not text or _BUILDS.search(text) is not None)


def _keepers_of_all(by_parameter: Iterable[str]) -> tuple[str, ...]:
    """The caches that have parameters as parts of their arguments, or the call; none where one has none."""
    keepers = sorted(set(by_parameter))
    return tuple(keepers) if all(keepers) else ()
