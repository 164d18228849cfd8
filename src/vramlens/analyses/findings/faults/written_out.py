"""Matrices of attention that are written out: one number for each pair of positions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

import numpy as np

from vramlens.analyses.attribution.modules import OUTSIDE
from vramlens.analyses.attribution.named_shapes import Shape
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.expressions.uses.expression_uses import use_of_expression
from vramlens.analyses.findings.faults.repeated_masks import is_of_fused_attention, mask_of
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.units import counted, format_size

_FEWEST_POSITIONS = 256
"""Of fewer a matrix is smaller than what a layer makes of them anyway."""
_WIDEST_HEAD = 512
"""Columns of queries and keys, at most: usual heads have 32 to 256."""
_LEAST_SHARE = 0.25
"""Of what is in use, with the failed request."""
_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
"""In names of modules and functions: distances, kernels and adjacency are numbers for pairs, too."""
_REMEDIES = (
    (
        re.compile(r"torch[/\\]nn[/\\]functional\.py:multi_head_attention_forward$"),
        "call nn.MultiheadAttention with need_weights=False",
    ),
    (
        re.compile(r"[/\\]transformers[/\\].*:eager_attention_forward$"),
        'load the model with attn_implementation="sdpa"',
    ),
)
"""Whose code writes them out, and what to call instead."""


@after_failure
def attention_written_out(scene: Scene) -> Iterator[Finding]:
    """The attention weights that are alive when memory runs out, or are asked for then."""
    request = scene.ending_request
    matrices = {
        row: shape
        for row, shape in _matrices(scene.advice_shapes).items()
        if not _is_a_copy(scene, row)
        and not is_of_fused_attention(scene, row)
        and mask_of(scene, row) is None
    }
    if not matrices:
        return
    matrix_rows = np.array(list(matrices), np.int64)
    alive_bytes = scene.bytes_of(matrix_rows)
    is_asked_for = any(shape.bytes == request.size_bytes for shape in matrices.values())
    is_asked_for &= use_of_expression(scene.ending_expression) is None
    asked_bytes = request.size_bytes if is_asked_for else 0
    if alive_bytes + asked_bytes < _LEAST_SHARE * scene.wanted_bytes:
        return
    largest = max(matrices, key=lambda row: matrices[row].bytes)
    positions = matrices[largest].sizes[-1]
    asks = ", and one more was asked for" if asked_bytes else ""
    is_sure = _is_of_attention(scene, largest)
    condition = "" if is_sure else "if these are weights of attention: "
    yield Finding(
        id="attention_written_out",
        verdict=Verdict.LIKELY if is_sure else Verdict.POSSIBLE,
        title=f"{counted(len(matrices), 'matrix', 'matrices')}{' of attention weights' if is_sure else ''}"
        f" hold {format_size(alive_bytes)}: a number for each pair of {positions:,} positions",
        bytes=alive_bytes + asked_bytes,
        place=scene.view.place_of_block(largest),
        evidence=(f"the largest is {matrices[largest]}{asks}",),
        fix=f"{condition}{_remedy(scene, largest)}: up to {format_size(alive_bytes + asked_bytes)}"
        " less",
        extent=scene.extent(matrix_rows),
    )


def _is_a_copy(scene: Scene, row: int) -> bool:
    """Whether the source says what else a matrix is: a mask or bias that is repeated, say."""
    text = scene.source_of(scene.view.place_of_block(row))
    return use_of_expression(text) is not None


def _is_of_attention(scene: Scene, row: int) -> bool:
    """Whether the module or a function that made a matrix is called so."""
    view, stack = scene.view, scene.device.allocations.stack[row]
    module = int(view.modules.module[row])
    path = view.modules.paths[module] if module != OUTSIDE else ""
    functions = (frame.function for frame in scene.trace.stacks.of(int(stack)))
    return any(_ATTENTION.search(name) for name in (path, *functions))


def _remedy(scene: Scene, row: int) -> str:
    """What makes a matrix that need not be written out, by whose code it is."""
    stack = scene.device.allocations.stack[row : row + 1]
    for pattern, remedy in _REMEDIES:
        if scene.trace.stacks.within(pattern, stack).any():
            return f"unless the weights are used, {remedy}, which does not write them out"
    return (
        "unless the weights are used, compute attention in"
        " torch.nn.functional.scaled_dot_product_attention(q, k, v), which does not write them out"
    )


def _matrices(shapes: Mapping[int, Shape]) -> dict[int, Shape]:
    """What has a number for each pair of positions, beside what may be queries or keys of as many
    positions and heads.
    """
    heads = {
        (math.prod(shape.sizes[:-2]), shape.sizes[-2])
        for shape in shapes.values()
        if _is_real(shape)
        and shape.sizes[-1] not in (1, shape.sizes[-2])
        and shape.sizes[-1] <= _WIDEST_HEAD
    }
    return {
        row: shape
        for row, shape in shapes.items()
        if _is_square(shape) and (math.prod(shape.sizes[:-2]), shape.sizes[-1]) in heads
    }


def _is_square(shape: Shape) -> bool:
    """Whether its last two dimensions are alike, and long."""
    return _is_real(shape) and shape.sizes[-1] == shape.sizes[-2] >= _FEWEST_POSITIONS


def _is_real(shape: Shape) -> bool:
    """Whether it holds real numbers, in three or four dimensions."""
    return len(shape.sizes) in (3, 4) and shape.type.startswith(("float", "bfloat"))
