"""Keys and values of several sequences for each prompt, which generate() makes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_CACHE = re.compile(r"^(?:Dynamic|Static)\w*(?:Cache|Layer)\.")
_EXPANDS = re.compile(r"[/\\]transformers[/\\]generation[/\\]utils\.py:_expand_\w+$")
"""Where generate() repeats what goes in, for several sequences of each prompt."""
_PROMPTS = re.compile(r"\binput_ids\b")
_TABLE, _SEVERAL = 2, 2
_LEAST_SHARE = 0.2
"""Of what is in use."""


@after_failure
def several_sequences(scene: Scene) -> Iterator[Finding]:
    """The cache of a generate() in which memory runs out, if it is for several sequences of each prompt."""
    names, shapes = scene.view.names, scene.advice_shapes
    rows = np.array([row for row in sorted(shapes) if _CACHE.match(names.name(row))], np.int64)
    size_bytes = scene.bytes_of(rows)
    if size_bytes < max(1, _LEAST_SHARE * scene.advice_heap.requested_bytes):
        return
    prompts, sequences = _prompts_and_sequences(scene)
    times = sequences // max(prompts, 1)
    if times < _SEVERAL:
        return
    saved_bytes = size_bytes - size_bytes // times
    yield Finding(
        id="several_sequences",
        verdict=Verdict.LIKELY,
        title=f"generate() makes {times} sequences for each of {prompts:,} prompts: their keys and"
        f" values take {scene.part_of_heap(size_bytes)} so far",
        bytes=saved_bytes,
        place=scene.failed_place,
        evidence=(f"num_return_sequences (or num_beams) makes {sequences:,} rows of {prompts:,}",),
        fix="where the prompts already hold each one as often as it is to be answered (a sampler"
        " that repeats them), set num_return_sequences=1; else generate for a part of the prompts"
        f" at a time (at least {format_size(saved_bytes)} less)",
        extent=scene.extent(rows),
        recurs=True,
    )


def _prompts_and_sequences(scene: Scene) -> tuple[int, int]:
    """Of how many prompts this generate() makes how many sequences; zeros where nobody knows: it repeats the
    tokens, a table of which is as wide.
    """
    allocations, names = scene.device.allocations, scene.view.names
    alive = scene.advice_rows
    is_repeated = scene.trace.stacks.within(_EXPANDS, allocations.stack[alive])
    repeated_bytes = set(allocations.requested_bytes[alive[is_repeated]].tolist())
    for row, shape in scene.advice_shapes.items():
        if (
            not shape.is_integer
            or len(shape.sizes) != _TABLE
            or not _PROMPTS.search(names.name(row))
        ):
            continue
        for size_bytes in repeated_bytes:
            if size_bytes > shape.bytes and not size_bytes % shape.bytes:
                return shape.sizes[0], shape.sizes[0] * (size_bytes // shape.bytes)
    return 0, 0
