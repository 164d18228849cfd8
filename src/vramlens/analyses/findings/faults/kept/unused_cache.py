"""Keys and values that a transformers model caches for text to come, in a pass that makes none."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_CACHE = re.compile(r"^Dynamic\w*(?:Cache|Layer)\.")
"""Classes of transformers that hold a layer's keys and values, and that a call makes by default."""
_MAKES = re.compile(r"[/\\]transformers[/\\]cache_utils\.py:")
_GENERATES = re.compile(r"[/\\]transformers[/\\]generation[/\\]")
_PASSED_IN = re.compile(r"\bpast_key_values\s*=\s*(?!None\b)(?P<cache>[\w.]+)(?P<call>\()?")
_SCORES = re.compile(r"\b(?:gather|cross_entropy|log_softmax|logsumexp|labels?|targets?)\b")
_PICKS_TOKENS = re.compile(r"\b(?:argmax|multinomial|sample|topk)\(|\.past_key_values\b")
_MAKER = (
    "the model caches for text to come, and none is generated here",
    "calls append to the cache that they are given",
)
_EVIDENCE = (
    "transformers caches them by default (use_cache=True), more with every layer",
    "a cache of transformers that is passed in grows with each call, also where the next one"
    " should begin at the same place",
)
_LEAST_SHARE = 0.1
_TIMES_BESIDE = 2
"""As large as the cache, that a pass keeps beside it at most: a graph keeps the same keys and values
anyway, and five times as much at least.
"""


@after_failure
def unused_cache(scene: Scene) -> Iterator[Finding]:
    """The cache that is alive when memory runs out, unless text is generated there."""
    frames = scene.trace.stacks.of(scene.ending_request.stack)
    if not frames or any(_GENERATES.search(frame.file) for frame in frames):
        return
    names = scene.view.names
    cached = [row for row in scene.program_rows.tolist() if _CACHE.match(names.name(row))]
    rows = np.array(cached, np.int64)
    size_bytes = scene.bytes_of(rows)
    if not size_bytes or size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    if not _is_of_one_pass(scene, rows):
        return
    place = scene.view.place_of_block(cached[-1])
    passed_in = _PASSED_IN.search(scene.source_of(place))
    if passed_in is not None and (passed_in["call"] or not _only_scores(scene, place)):
        return
    yield Finding(
        id="unused_cache",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are keys and values that"
        f" {_MAKER[passed_in is not None]}",
        bytes=size_bytes,
        place=place,
        evidence=(_EVIDENCE[passed_in is not None],),
        fix=f"{_remedy(passed_in)} (up to {format_size(size_bytes)} less)",
        extent=scene.extent(rows),
    )


def _only_scores(scene: Scene, place: Place | None) -> bool:
    """Whether the lines around a call look its results up, and neither choose the next token nor hand the cache on, as
    where text is generated or a long prompt goes in piece by piece.
    """
    if place is None:
        return False
    texts = [*scene.source_above(place), scene.source_of(place), *scene.source_below(place)]
    return any(map(_SCORES.search, texts)) and not any(map(_PICKS_TOKENS.search, texts))


def _remedy(passed_in: re.Match[str] | None) -> str:
    """What to do about a cache that a call makes, or that it is given."""
    if passed_in is None:
        return "call the model with use_cache=False, or set model.config.use_cache = False"
    return (
        f"pass a copy, past_key_values=copy.deepcopy({passed_in['cache']}), where each call should"
        " begin at the same place: so far its results depend on the calls before it, too"
    )


def _is_of_one_pass(scene: Scene, rows: NDArray[np.int64]) -> bool:
    """Whether the pass that failed made this cache, and keeps no graph: a cache of earlier calls is
    used by this one.
    """
    view, allocations = scene.view, scene.device.allocations
    is_made_by_default = scene.trace.stacks.within(_MAKES, allocations.stack[rows]).any()
    if not len(scene.pass_begins) or not is_made_by_default:
        return False
    begins = int(scene.pass_begins[-1])
    alive = scene.advice_rows
    of_pass = alive[view.modules.marked[alive] & (allocations.born[alive] >= begins)]
    beside_bytes = scene.bytes_of(np.setdiff1d(of_pass, rows))
    cache_bytes = scene.bytes_of(rows)
    is_of_pass = int(allocations.born[rows].min()) >= begins
    return is_of_pass and beside_bytes <= _TIMES_BESIDE * cache_bytes
