"""Scores of all tokens that generate() keeps."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import NO_STACK
from vramlens.units import format_size

_GENERATION = re.compile(r"[/\\]transformers[/\\]generation[/\\]")
"""Where transformers makes scores from a model's logits; the model and its cache of keys are elsewhere."""
_FEWEST_TOKENS = 8
"""Fewer are what one token needs at once: each processor of logits makes a copy."""
_LEAST_SHARE = 0.25


@after_failure
def generation_scores(scene: Scene) -> Iterator[Finding]:
    """What transformers' generate() has kept of each token when memory runs out, its cache aside, if that
    is much of all.
    """
    allocations, stacks = scene.device.allocations, scene.trace.stacks
    rows = scene.advice_rows
    rows = rows[allocations.stack[rows] != NO_STACK]
    frames = stacks.code_frame[allocations.stack[rows]]
    is_generation = np.append(stacks.mark_frames(_GENERATION), False)
    rows = rows[is_generation[frames]]
    sizes, counts = np.unique(allocations.requested_bytes[rows], return_counts=True)
    if not len(sizes) or counts.max() < _FEWEST_TOKENS:
        return
    most = int(np.argmax(sizes * counts))
    rows = rows[allocations.requested_bytes[rows] == sizes[most]]
    size_bytes = int(sizes[most] * counts[most])
    if size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    yield Finding(
        id="generation_scores",
        verdict=Verdict.LIKELY,
        title=f"generate() keeps {scene.part_of_heap(size_bytes)} of the {len(rows):,} tokens"
        f" that it has made: {format_size(int(sizes[most]))} each, as large as their scores",
        bytes=size_bytes,
        place=scene.view.place_of_block(int(rows[-1])),
        evidence=("they were made in transformers' generation, not in the model or its cache",),
        fix="unless the scores are used, leave out output_scores=True and output_logits=True;"
        " where those of the chosen tokens are, compute them in one pass over the finished text, a"
        f" few rows at a time (up to {format_size(size_bytes)} less)",
        extent=scene.extent(rows),
    )
