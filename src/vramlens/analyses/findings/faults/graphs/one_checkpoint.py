"""One checkpoint around many layers: its backward pass computes all of them again before it uses any."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.extent import Extent
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.usage import part_of_heap
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_RECOMPUTING = re.compile(
    r"torch[/\\]utils[/\\]checkpoint\.py:(?:recompute_\w+|unpack_hook|backward)$"
)
"""What torch.utils.checkpoint computes again, in its two ways."""
_LAYER = re.compile(r"^.*?\.[0-9]+(?=\.|$)", re.ASCII)
"""``model.blocks.3`` of ``model.blocks.3.mlp.fc1``."""
_FEWEST_LAYERS = 4
"""A segment of two or three layers may be chosen so, to store fewer inputs."""
_LEAST_SHARE = 0.4
"""Of what is in use."""


def one_checkpoint(scene: Scene) -> Iterator[Finding]:
    """What several layers have computed again, and that is in use together when memory runs out."""
    if scene.ending_request is None:
        return
    allocations, modules, rows = scene.device.allocations, scene.view.modules, scene.advice_rows
    is_again = scene.trace.stacks.within(_RECOMPUTING, allocations.stack[rows])
    rows = rows[is_again & modules.marked[rows]]
    layers = _layers(modules.paths, modules.module[rows])
    size_bytes = int(allocations.requested_bytes[rows].sum())
    if len(layers) < _FEWEST_LAYERS or size_bytes < _LEAST_SHARE * scene.wanted_bytes:
        return
    saved_bytes = size_bytes - size_bytes // len(layers)
    yield Finding(
        id="one_checkpoint",
        verdict=Verdict.LIKELY,
        title=f"{part_of_heap(size_bytes, scene.advice_heap)} were computed again for one checkpoint, which is"
        f" around {len(layers)} layers or more",
        bytes=saved_bytes,
        place=scene.view.place_of_block(int(rows[np.argmax(allocations.requested_bytes[rows])])),
        evidence=(
            f"its backward pass computes all of them again, up to {layers[-1]} so far, before it frees"
            " anything of them",
        ),
        fix="checkpoint each layer by itself: for block in blocks: x = checkpoint(block, x,"
        f" use_reentrant=False), so that one is computed again at a time (up to {format_size(saved_bytes)} less)",
        extent=Extent(scene.advice_event, rows),
    )


def _layers(paths: tuple[str, ...], module: NDArray[np.int64]) -> list[str]:
    """The numbered layers that these modules are, or are inside of, in the order in which they ran."""
    layers = (_LAYER.match(paths[number]) for number in dict.fromkeys(module.tolist()))
    return [*dict.fromkeys(layer[0] for layer in layers if layer is not None)]
