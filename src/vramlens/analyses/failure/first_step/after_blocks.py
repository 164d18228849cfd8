"""What may come after a model's repeated blocks: its head's outputs, by the parameters' sizes.

A matrix of W bytes on vectors that are D bytes wide gives W / D numbers a vector. The blocks hand
such vectors on: their norms and biases are as wide, and most of what a block asks for is as large as
what it hands on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.trace import TensorKind

_MOST_MATRICES = 3
"""After the blocks: more are a decoder, which may keep as much as the blocks."""
_COPIES = 4
"""Of a head's outputs: in float32, their logarithm, and a gradient of each."""
_NARROWEST_BYTES = 64
_LEAST_BYTES = 2**16
_BYTES_OF_FLOAT = 4


def bytes_after_blocks(
    view: Attribution,
    blocks: Collection[str],
    sizes_in_block: NDArray[np.int64],
    *,
    outside_bytes: int,
    kept_bytes: int,
) -> int:
    """The most that may come after the last block.

    Args:
        blocks: the paths of the blocks of the model that is running, in its order.
        sizes_in_block: of what the latest whole block keeps.
        outside_bytes: activations that lie outside of blocks.
        kept_bytes: activations of all blocks so far: the bound where nothing tells more.
    """
    head_bytes = _head_bytes(view, tuple(blocks), sizes_in_block)
    if head_bytes is None:
        return max(outside_bytes, kept_bytes)
    return max(outside_bytes, min(kept_bytes, outside_bytes + head_bytes))


def _head_bytes(
    view: Attribution, blocks: tuple[str, ...], sizes_in_block: NDArray[np.int64]
) -> int | None:
    """The outputs of the widest matrix outside of blocks, with what is computed of them; None where
    the parameters do not tell.
    """
    large = sizes_in_block[sizes_in_block >= _LEAST_BYTES]
    outside, inside_last, after = _parameter_sizes(view, blocks)
    wide_enough = [size for size in inside_last if size >= _NARROWEST_BYTES]
    if not len(large) or not wide_enough or not outside:
        return None
    width = min(wide_enough)
    if sum(size > width for size in after) > _MOST_MATRICES:
        return None
    handed_on = int(Counter(large.tolist()).most_common(1)[0][0])
    numbers_per_vector = max(outside) // width
    vectors = handed_on // width
    return _COPIES * (vectors * numbers_per_vector * _BYTES_OF_FLOAT + handed_on)


def _parameter_sizes(
    view: Attribution, blocks: tuple[str, ...]
) -> tuple[list[int], list[int], list[int]]:
    """The sizes of the model's parameters outside of blocks, in its last block, and after that."""
    table = view.trace.names
    assert table is not None
    root = blocks[-1].partition(".")[0] + "."
    outside: list[int] = []
    inside_last: list[int] = []
    after: list[int] = []
    for row in np.flatnonzero(table.kind == TensorKind.PARAMETER).tolist():
        name, size = table.name[row], int(table.size_bytes[row])
        if name.startswith(f"{blocks[-1]}."):
            inside_last.append(size)
            after = []
        elif name.startswith(root) and not name.startswith(tuple(f"{path}." for path in blocks)):
            outside.append(size)
            after.append(size)
    return outside, inside_last, after
