"""Types and shapes of tensors, where the recording or their names tell them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from vramlens.analyses.attribution.names import Names

_SHAPE = re.compile(
    r"\b(?P<type>[a-z]+\d{1,3}(?!\d)\w*)\[(?P<sizes>\d{1,18}(?:, ?\d{1,18}){0,63})\]\)?(?: tensor| slice)?$"
)
"""``float32[8, 1024] tensor``, ``name (slice int64[256, 120])`` (capture/names/tensor_names.py)."""
_BITS = re.compile(r"\d+")
_MOST_DIMENSIONS = 16
_MOST_NUMBERS = 1 << 48
"""Of a tensor: no device holds more, and a name may come from a stranger."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a name says of a tensor.

    Attributes:
        type: PyTorch's name of its type, such as ``float32``.
        sizes: of its dimensions.
    """

    type: str
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.type}{list(self.sizes)}"

    @property
    def item_bytes(self) -> int:
        """Of one number."""
        bits = _BITS.search(self.type)
        return max(int(bits[0]) // 8, 1) if bits is not None else 1

    @property
    def bytes(self) -> int:
        """Of all of it."""
        return math.prod(self.sizes) * self.item_bytes

    @property
    def is_integer(self) -> bool:
        """Whether it holds whole numbers."""
        return self.type.startswith(("int", "uint"))


def shape_in(name: str) -> Shape | None:
    """The type and shape that a tensor's name ends with; None where it tells none."""
    match = _SHAPE.search(name)
    if match is None:
        return None
    sizes = tuple(int(size) for size in match["sizes"].split(",") if size.strip())
    is_possible = (
        len(sizes) <= _MOST_DIMENSIONS and math.prod(size or 1 for size in sizes) <= _MOST_NUMBERS
    )
    return Shape(match["type"], sizes) if is_possible else None


def shapes_of(names: Names, rows: Iterable[int]) -> dict[int, Shape]:
    """The shapes of allocations, by row, of those that the recording or their names tell."""
    by_row = ((row, shape_in(names.shape(row) or names.name(row))) for row in rows)
    return {row: shape for row, shape in by_row if shape is not None}
