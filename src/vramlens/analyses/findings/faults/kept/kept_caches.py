"""Caches of keys and values that earlier passes left: those of texts that are finished, and earlier versions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_ENTRY_OF_CACHE = re.compile(
    r"(?:^|\.)(?:\w*Layer\.(?:keys|values)|(?:key|value)_cache(?:\[|$))"
    r"|Cache\.layers\[\d+\]\.(?:keys|values)$"
)
"""What transformers calls the keys and values of a layer: ``DynamicLayer.keys``."""
_GENERATION = re.compile(r"[/\\]transformers[/\\]generation[/\\]")
_ADDS_A_PIECE = re.compile(r"\b(?:cat|concat)\(\s*[\[(]\s*[\w.\[\]]+\s*,")
"""Puts a piece behind what is there."""
_FEWEST_CACHES = 3
_FEWEST_VERSIONS = 4
_ALIKE = 4
"""Times the smallest piece: of several tokens at once some are more."""
_LEAST_SHARE = 0.25
"""Of what is in use."""


@dataclass(frozen=True, eq=False)
class _Caches:
    """What earlier passes left.

    Attributes:
        rows: of all of them, with the present one.
        old_bytes: without the present one.
        title: what they are, in words that follow their size.
        fix: what to change.
    """

    rows: NDArray[np.int64]
    old_bytes: int
    title: str
    fix: str


@after_failure
def kept_caches(scene: Scene) -> Iterator[Finding]:
    """The caches that earlier passes left when memory runs out, if they are much of all."""
    both = [caches for caches in (_of_texts(scene), _versions(scene)) if caches is not None]
    caches = max(both, key=lambda caches: caches.old_bytes, default=None)
    if caches is None or caches.old_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    yield Finding(
        id="kept_caches",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(caches.old_bytes)} are {caches.title}",
        bytes=caches.old_bytes,
        place=scene.view.place_of_block(int(caches.rows[-1])),
        evidence=("without gradients nothing but the program keeps them",),
        fix=f"{caches.fix} (up to {format_size(caches.old_bytes)} less)",
        extent=scene.extent(caches.rows),
    )


def _of_texts(scene: Scene) -> _Caches | None:
    """The caches of texts that transformers' generate() has made, one entry of each layer a text."""
    stacks, allocations, names = scene.trace.stacks, scene.device.allocations, scene.view.names
    rows = scene.program_rows
    rows = rows[scene.view.modules.marked[rows]]
    rows = rows[stacks.within(_GENERATION, allocations.stack[rows])]
    is_entry = [bool(_ENTRY_OF_CACHE.search(names.name(row))) for row in rows.tolist()]
    rows = rows[np.array(is_entry, np.bool_)]
    if not len(rows):
        return None
    # The entries of one text are all of the pass that made its last token.
    passes = np.searchsorted(scene.pass_begins, allocations.born[rows], "right")
    count = len(np.unique(passes))
    if count < _FEWEST_CACHES:
        return None
    size_bytes = scene.bytes_of(rows)
    return _Caches(
        rows,
        size_bytes - size_bytes // count,
        f"caches of keys and values that {count} calls of generate() have left",
        "keep only the tokens of a result (out.sequences): with return_dict_in_generate=True it"
        " holds its cache (past_key_values) and its scores, too; a cache that a conversation goes on with can be"
        " moved to the CPU until then",
    )


def _versions(scene: Scene) -> _Caches | None:
    """What lines made in several lengths of the same modules, each a copy of an earlier one and a piece more."""
    view, allocations = scene.view, scene.device.allocations
    lines = {
        line.place
        for line in scene.advice_heap.by_line
        if _ADDS_A_PIECE.search(scene.source_of(line.place))
    }
    rows = scene.advice_rows
    rows = rows[view.modules.marked[rows] & view.modules.without_grad[rows]]
    places = [view.place_of_block(row) for row in rows.tolist()]
    rows = rows[np.array([place in lines for place in places], np.bool_)]
    sizes = allocations.requested_bytes[rows]
    if len(np.unique(sizes)) < _FEWEST_VERSIONS:
        return None
    modules = view.modules.module[rows]
    largest = np.zeros(int(modules.max()) + 1, np.int64)
    np.maximum.at(largest, modules, sizes)
    is_old = sizes < largest[modules]
    is_of_one = modules == modules[np.argmax(sizes)]
    versions = len(np.unique(sizes[is_of_one]))
    if versions < _FEWEST_VERSIONS or not _grows_by_pieces(sizes[is_of_one]):
        return None
    return _Caches(
        rows,
        int(sizes[is_old].sum()),
        f"old copies of a growing cache ({versions} lengths): each pass copies the whole cache to"
        " add a piece, and the old copies are still there",
        "drop a version once the passes that follow on it have their own (node.cache = None), or"
        " keep what has to be looked at again on the CPU",
    )


def _grows_by_pieces(sizes: NDArray[np.int64]) -> bool:
    """Whether sizes, in the order of their births, never fall, and grow by pieces that are alike and small:
    texts of other lengths come in any order, maps of other scales differ by far.
    """
    steps = np.diff(np.unique(sizes))
    return bool((np.diff(sizes) >= 0).all() and steps.max() <= _ALIKE * steps.min()) and bool(
        sizes.max() <= 2 * sizes.min()
    )
