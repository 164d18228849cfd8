"""Attention that PyTorch computes in plain operators, where none of its fused kernels takes the inputs."""

from __future__ import annotations

import ast

from vramlens.analyses.findings.faults.expressions.expression_parts import argument, value_of
from vramlens.analyses.findings.faults.expressions.uses.expression_uses import (
    ANY_CALL,
    ExpressionUse,
)
from vramlens.analyses.scene import Scene
from vramlens.ground.source_code import called

_FEWEST_POSITIONS = 256
_ITEM_BYTES = (2, 4, 8)
_INPUTS = 3
"""Query, key and value. What follows is a mask, which a fused kernel may copy for each head."""
_FIX = (
    "the fused kernels take four dimensions (batch, heads, positions, head_dim): if q, k and v have"
    " more, flatten the leading ones, F.scaled_dot_product_attention(q.flatten(0, 1), …)"
    ".unflatten(0, sizes). If they have four, call it under"
    " torch.nn.attention.sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION), which warns of what its kernel"
    " does not take"
)


def use_of_math_attention(scene: Scene) -> ExpressionUse | None:
    """What scaled_dot_product_attention makes without a fused kernel: a number for each pair of positions;
    None where the failed request is no such matrix, or a mask is passed.
    """
    call = value_of(scene.ending_expression)
    if not isinstance(call, ast.Call) or called(call) != "scaled_dot_product_attention":
        return None
    if len(call.args) > _INPUTS or argument(call, "attn_mask") is not None:
        return None
    positions = _positions(scene)
    if not positions:
        return None
    return ExpressionUse(
        ANY_CALL,
        "is computed without a fused kernel, and writes out a number for each pair of"
        f" {positions:,} positions",
        _FIX,
        stays=True,
    )


def _positions(scene: Scene) -> int:
    """The largest size of what is in use whose square divides the failed request; 0 without one."""
    size_bytes = scene.ending_request.size_bytes
    sizes = {size for shape in scene.advice_shapes.values() for size in shape.sizes}
    return max(
        (
            size
            for size in sizes
            if size >= _FEWEST_POSITIONS
            and any(size_bytes % (size * size * item) == 0 for item in _ITEM_BYTES)
        ),
        default=0,
    )
