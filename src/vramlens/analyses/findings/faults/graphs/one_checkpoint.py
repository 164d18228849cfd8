"""Checkpoints that save little: one around many layers, whose backward pass computes all of them again before it
uses any, and the last segment of a sequence, which has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.parameter_uses import all_around
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_RECOMPUTING = re.compile(
    r"torch[/\\]utils[/\\]checkpoint\.py:(?:recompute_\w+|unpack_hook|backward)$"
)
"""What torch.utils.checkpoint computes again, in its two ways."""
_OF_SEGMENT = re.compile(r"torch[/\\]utils[/\\]checkpoint\.py:forward$")
"""A function of ``checkpoint_sequential``, which runs a segment of a sequence."""
_IN_SEQUENCE = re.compile(r"torch[/\\]utils[/\\]checkpoint\.py:checkpoint_sequential$")
_IN_CHECKPOINT = re.compile(r"torch[/\\]utils[/\\]checkpoint\.py:checkpoint$")
_LEAST_OF_LAST = 0.5
"""Of what is in use: two segments leave half of the activations to the last."""
_DEEPEST = 3
"""Numbers in a path that are looked at."""
_FEWEST_LAYERS = 4
"""A segment of two or three layers may be chosen so, to store fewer inputs."""
_LEAST_SHARE = 0.4
"""Of what is in use."""


@after_failure
def one_checkpoint(scene: Scene) -> Iterator[Finding]:
    """What several layers have computed again, and that is in use together when memory runs out; or what the last
    segment of ``checkpoint_sequential`` keeps.
    """
    yield from _of_last_segment(scene)
    yield from _computed_again(scene)


def _of_last_segment(scene: Scene) -> Iterator[Finding]:
    stacks, allocations, rows = scene.trace.stacks, scene.device.allocations, scene.advice_rows
    stack = allocations.stack[rows]
    rows = rows[stacks.within(_IN_SEQUENCE, stack) & ~stacks.within(_IN_CHECKPOINT, stack)]
    size_bytes = scene.bytes_of(rows)
    modules = scene.view.modules
    marked = rows[modules.marked[rows]]
    is_one_layer = len(marked) > 0 and len(_layers(modules.paths, modules.module[marked])) < 2
    is_much = size_bytes >= max(_LEAST_OF_LAST * scene.advice_heap.requested_bytes, 1)
    if not is_much or is_one_layer:
        return
    yield Finding(
        id="one_checkpoint",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are activations of checkpoint_sequential's last"
        " segment, which it never checkpoints",
        bytes=size_bytes,
        place=scene.view.place_of_block(allocations.largest_of(rows)),
        evidence=("with one segment nothing is checkpointed, with two half of the layers",),
        fix="pass more segments (the second argument is how many, not how long they are): the"
        " square root of the number of layers, or as many as there are layers",
        extent=scene.extent(rows),
    )


def _computed_again(scene: Scene) -> Iterator[Finding]:
    allocations, modules, rows = scene.device.allocations, scene.view.modules, scene.advice_rows
    is_again = scene.trace.stacks.within(_RECOMPUTING, allocations.stack[rows])
    rows = rows[is_again & modules.marked[rows]]
    layers = _layers(modules.paths, modules.module[rows])
    size_bytes = scene.bytes_of(rows)
    if size_bytes < _LEAST_SHARE * scene.wanted_bytes:
        return
    if len(layers) < _FEWEST_LAYERS:
        yield from _of_loop(scene, rows)
        return
    is_segment = scene.trace.stacks.within(_OF_SEGMENT, allocations.stack[rows]).all()
    yield _of_parts(
        scene,
        rows,
        len(layers),
        # How many segments a sequence has is a choice.
        verdict=Verdict.POSSIBLE if is_segment else Verdict.LIKELY,
        parts="layers",
        evidence=f"its backward pass computes all of them again ({layers[-1]} is the latest)"
        " before it frees any",
        fix="checkpoint each layer by itself: for block in blocks: x = checkpoint(block, x,"
        " use_reentrant=False), so that one is computed again at a time",
    )


def _of_loop(scene: Scene, rows: NDArray[np.int64]) -> Iterator[Finding]:
    """A checkpoint around a loop, whose iterations run the same modules again and again.

    Args:
        rows: what it computed again.
    """
    calls = np.stack(
        [scene.view.modules.module[rows], scene.device.allocations.stack[rows].astype(np.int64)]
    )
    _, counts = np.unique(calls, axis=1, return_counts=True)
    turns = int(counts.max())
    if turns < _FEWEST_LAYERS:
        return
    yield _of_parts(
        scene,
        rows,
        turns,
        verdict=Verdict.LIKELY,
        parts="iterations of a loop",
        evidence="its backward pass computes all iterations again before it frees any",
        fix="checkpoint each iteration by itself, inside of the loop: state ="
        " checkpoint(self.step, state, use_reentrant=False), so that one is computed again at a"
        " time",
    )


def _of_parts(
    scene: Scene,
    rows: NDArray[np.int64],
    count: int,
    *,
    verdict: Verdict,
    parts: str,
    evidence: str,
    fix: str,
) -> Finding:
    """What is said of a checkpoint around so many parts, of which one at a time is enough.

    Args:
        rows: what it computed again.
    """
    allocations = scene.device.allocations
    size_bytes = scene.bytes_of(rows)
    saved_bytes = size_bytes - size_bytes // count
    return Finding(
        id="one_checkpoint",
        verdict=verdict,
        title=f"{scene.part_of_heap(size_bytes)} were computed again for one checkpoint, which is"
        f" around {count} {parts} or more",
        bytes=saved_bytes,
        place=scene.view.place_of_block(allocations.largest_of(rows)),
        evidence=(evidence,),
        fix=f"{fix} (up to {format_size(saved_bytes)} less)",
        extent=scene.extent(rows),
    )


def _layers(paths: tuple[str, ...], module: NDArray[np.int64]) -> list[str]:
    """The numbered modules with children that these are inside of, in the order in which they ran: of the
    first number in their paths that is not the same for all.
    """
    used_paths = [paths[number] for number in dict.fromkeys(module.tolist())]
    for depth in range(1, _DEEPEST + 1):
        layers = [*dict.fromkeys(filter(None, (_outer(path, depth) for path in used_paths)))]
        if len(layers) > 1:
            outer = all_around(path.rpartition(".")[0] for path in paths)
            return [layer for layer in layers if layer in outer]
    return []


def _outer(path: str, depth: int) -> str:
    """The part of a path that ends with its so many-th number; "" where it has fewer."""
    parts = path.split(".")
    ends = [end for end, part in enumerate(parts, 1) if part.isdecimal()]
    return ".".join(parts[: ends[depth - 1]]) if len(ends) >= depth else ""
