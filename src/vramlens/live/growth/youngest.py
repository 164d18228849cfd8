"""The tensors that were made last, as Python's collector keeps them: in the order in which they
were made.
"""

from __future__ import annotations

from typing import Any

from vramlens.capture.process.tracked_objects import tracked_of_types, youngest_of_types
from vramlens.live.heap.tensors import TorchObjects


class _Mark:
    """Put among the youngest objects: what comes after it was made since."""


class Youngest:
    """The tensors of the collector's younger generations."""

    def __init__(self, torch: TorchObjects) -> None:
        self._torch = torch
        self._mark: _Mark | None = None

    def mark(self) -> None:
        """What is made from now on is new."""
        self._mark = _Mark()

    def made_since(self) -> list[Any]:
        """Those made since the mark; all of the youngest generation where a collection came
        between.
        """
        return youngest_of_types(self._torch.tensor_types, self._mark)

    def all(self) -> list[Any]:
        """Those of the two younger generations."""
        types = self._torch.tensor_types
        return tracked_of_types(types, generation=0) + tracked_of_types(types, generation=1)
