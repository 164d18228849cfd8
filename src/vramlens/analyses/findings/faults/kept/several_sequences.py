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
_GENERATES = re.compile(r"[/\\]transformers[/\\]generation[/\\]utils\.py$")
_PROMPTS = re.compile(r"\binput_ids\b")
_TABLE = 2
_LEAST_SHARE = 0.2
"""Of what is in use."""


@after_failure
def several_sequences(scene: Scene) -> Iterator[Finding]:
    """The cache of a generate() in which memory runs out, if it is for several sequences of each prompt."""
    frames = scene.trace.stacks.of(scene.ending_request.stack)
    if not any(_GENERATES.search(frame.file) for frame in frames):
        return
    names, shapes = scene.view.names, scene.advice_shapes
    cached = [row for row in shapes if _CACHE.match(names.name(row))]
    sequences = max((shapes[row].sizes[0] for row in cached if shapes[row].sizes), default=0)
    prompts = _prompts(scene)
    times = sequences // prompts if prompts and not sequences % prompts else 0
    rows = np.array(sorted(cached), np.int64)
    size_bytes = scene.bytes_of(rows)
    if times < 2 or size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
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


def _prompts(scene: Scene) -> int:
    """How many rows of tokens the program passes in; 0 where nobody knows."""
    names = scene.view.names
    tables = [
        shape.sizes
        for row, shape in scene.advice_shapes.items()
        if shape.is_integer and len(shape.sizes) == _TABLE and _PROMPTS.search(names.name(row))
    ]
    return min((sizes[0] for sizes in tables), default=0)
