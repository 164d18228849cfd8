"""One operator that ran on the card, and how what its kernel asks for is written down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vramlens.cards.known_cards import Card
from vramlens.prediction.tensors.operator_schema import tensors_in


@dataclass(frozen=True, slots=True)
class KernelCall:
    """An operator with its arguments and its results."""

    name: str
    args: Any
    kwargs: Any
    outputs: list[Any]
    card: Card

    @property
    def tensors(self) -> list[Any]:
        """All tensors that it reads and makes."""
        return [*self.outputs, *tensors_in(self.args, self.kwargs)]

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """An argument that may be given by place or by name."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)


Rule = Callable[[KernelCall], Iterable[int]]
"""What a kernel asks for before its results, or beside them, in order: bytes, and less than none
where the latest request of so many bytes is given back. What is left goes when the kernel returns.
"""


def used_and_gone(sizes: Sequence[int]) -> list[int]:
    """Bytes that are asked for in order, and given back before anything else is asked for."""
    return [*sizes, *(-size for size in reversed(sizes))]
