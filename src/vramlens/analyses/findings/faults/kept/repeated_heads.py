"""A cache of keys and values that are repeated for all heads before it takes them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_KEYS_OR_VALUES = re.compile(
    r"(?:^|[._\[\"'])(?:[kv]|keys?|values?)(?![a-z])|cache|kv", re.IGNORECASE
)
_KEY_OR_VALUE = r"(?:[kv]|keys?|values?|(?:key|value)_states)"
_REPEATS = re.compile(
    rf"^{_KEY_OR_VALUE}(?:\s*,\s*{_KEY_OR_VALUE})?\s*=.*(?:\brepeat_interleave\(|\.repeat\(|\brepeat_kv\("
    r"|\.expand\(.*\.(?:reshape|contiguous)\()"
)
"""A line that repeats keys or values."""
_QUERY = re.compile(r"\.(?:q|wq|q_proj|query|to_q)\.weight$")
_KEY = re.compile(r"\.(?:k|wk|k_proj|key|to_k)\.weight$")
_LEAST_SHARE = 0.25
_FEWEST = 4
"""Tensors of a cache: keys and values of two layers."""
_MOST_LINES = 16
"""Between a repeat and the call of the cache, in one function."""


@after_failure
def repeated_heads(scene: Scene) -> Iterator[Finding]:
    """What such a cache keeps when memory runs out."""
    names, view = scene.view.names, scene.view
    cached = [row for row in scene.program_rows.tolist() if _KEYS_OR_VALUES.search(names.name(row))]
    repeats = _repeating_lines(scene)
    if not repeats:
        return
    entries = np.array([row for row in cached if _is_filled_after(scene, row, repeats)], np.int64)
    size_bytes = scene.bytes_of(entries)
    if len(entries) < _FEWEST or size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    heads = _heads_for_each(scene)
    if heads == 1:
        return
    evidence = ["what repeats them stands before the call of the cache, in the same function"]
    saved = ""
    if heads > 1:
        evidence.append(f"the weights make one head of keys for {heads} heads of queries")
        saved = f" (up to {format_size(size_bytes - size_bytes // heads)} less)"
    yield Finding(
        id="repeated_heads",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are keys and values in a cache, repeated for all"
        " heads before it takes them",
        bytes=size_bytes,
        place=view.place_of_block(int(entries[-1])),
        evidence=tuple(evidence),
        fix="cache them as the layer makes them, and repeat what leaves the cache;"
        f" F.scaled_dot_product_attention does it itself with enable_gqa=True{saved}",
        extent=scene.extent(entries),
    )


def _repeating_lines(scene: Scene) -> list[Place]:
    """The lines that made something in use by repeating it."""
    places = (line.place for line in scene.advice_heap.by_line)
    return [place for place in places if _REPEATS.search(scene.source_of(place))]


def _is_filled_after(scene: Scene, row: int, repeats: list[Place]) -> bool:
    """Whether a function that repeats keys or values then made an entry, or called what made it."""
    frames = scene.trace.stacks.of(int(scene.device.allocations.stack[row]))
    return any(
        (frame.file, frame.function) == (place.file, place.function)
        and 0 < frame.line - place.line <= _MOST_LINES
        for frame in frames
        for place in repeats
    )


def _heads_for_each(scene: Scene) -> int:
    """Heads of queries for each of keys, by the weights that make them; 0 where these do not tell."""
    queries, keys = (_sizes_by_layer(scene, ending) for ending in (_QUERY, _KEY))
    ratios = {queries[layer] // keys[layer] for layer in queries.keys() & keys.keys()}
    return ratios.pop() if len(ratios) == 1 else 0


def _sizes_by_layer(scene: Scene, ending: re.Pattern[str]) -> dict[str, int]:
    """The bytes of the weights whose names end so, by the name without that."""
    sizes = scene.device.allocations.requested_bytes
    rows_by_name = {scene.view.names.name(row): row for row in scene.advice_rows.tolist()}
    return {
        ending.sub("", name): int(sizes[row])
        for name, row in rows_by_name.items()
        if ending.search(name)
    }
