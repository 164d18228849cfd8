"""Tensors that were computed alike: by the same operators, of the same tensors and numbers.

Their values are equal, whatever they are. A library that asks for it takes another path then, such
as gpytorch for the distances of points to themselves (``gp_exact``).
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from vramlens.prediction.tensors.operator_schema import Operator

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_ORIGIN = "vramlens_origin"


class Origins:
    """What each tensor was computed by and of, as one number."""

    def __init__(self) -> None:
        self._numbers = count()
        self._writes: dict[int, int] = {}

    def follow(self, operator: Operator, call: Any, tensors: list[Any], outputs: list[Any]) -> None:
        """Notes what an operator made of tensors.

        Args:
            call: what else its results hang on; None where that is not known.
        """
        if operator.written:
            self.written(tensors)
            return
        if operator.is_random or call is None or not tensors:
            return
        origin = hash((call, *map(self._origin_of, tensors)))
        for place, output in enumerate(outputs):
            if not operator.is_view:
                self._writes.pop(_storage_of(output), None)
            setattr(output, _ORIGIN, hash((origin, place)))

    def written(self, tensors: list[Any]) -> None:
        """Notes that tensors have other values than before."""
        for tensor in tensors:
            if tensor.layout is torch.strided:
                self._writes[_storage_of(tensor)] = next(self._numbers)

    def are_same(self, first: Any, second: Any) -> bool:
        """Whether two tensors were computed alike."""
        return first.shape == second.shape and self._origin_of(first) == self._origin_of(second)

    def _origin_of(self, tensor: Any) -> int:
        """A number that tensors have in common which were computed alike."""
        origin = tensor.__dict__.get(_ORIGIN)
        if origin is None:
            origin = next(self._numbers)
            setattr(tensor, _ORIGIN, origin)
        written = self._writes.get(_storage_of(tensor)) if self._writes else None
        return origin if written is None else hash((origin, written))


def _storage_of(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)
