"""Images that a store keeps as float32, where their bytes would do until a model gets them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.expressions.costly_expression import shown
from vramlens.analyses.findings.usage import rows_of_lines
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.units import counted, format_size

_SCALED = re.compile(r"(?:/|\.div_?\()\s*255\b|\*\s*\(1(?:\.0)?\s*/\s*255\b")
"""``frames.float() / 255``: an image's bytes become numbers between 0 and 1."""
_HALF = re.compile(r"\bhalf\b|float16")
"""In 16 bits they take half as much; ``bfloat16``, too."""
_LEAST_SHARE = 0.25
"""Of what is in use."""
_FEWEST = 16
"""Tensors: those of one batch are fewer."""
_OF_FLOATS = 0.75
"""Of a float32 image, that its bytes save."""


@after_failure
def float_images(scene: Scene) -> Iterator[Finding]:
    """What lines that scale images have made and is kept, where that is much."""
    for line in scene.advice_heap.by_line:
        place = line.place
        expression = scene.source_of(place).removeprefix("return ")
        if place is None or not _SCALED.search(expression) or _HALF.search(expression):
            continue
        rows = rows_of_lines(scene, {place})
        rows = rows[scene.view.categories.category[rows] != Category.ACTIVATIONS]
        rows = np.intersect1d(rows, scene.program_rows)
        size_bytes = scene.bytes_of(rows)
        if len(rows) < _FEWEST or size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
            continue
        saved_bytes = int(_OF_FLOATS * size_bytes)
        yield Finding(
            id="float_images",
            verdict=Verdict.LIKELY,
            title=f"{scene.part_of_heap(size_bytes)} are images that {shown(expression)} made float32, in"
            f" {counted(len(rows), 'tensor')} that are kept",
            bytes=saved_bytes,
            place=place,
            evidence=("a number of an image takes one byte before that line, and four after it",),
            fix="keep the images as they came (uint8), and scale a batch when the model gets it, such as in its"
            f" forward(): about {format_size(saved_bytes)} less",
            extent=scene.extent(rows),
        )
        return
