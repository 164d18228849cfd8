"""The tensors that were made last, as Python's collector keeps them: in the order in which they
were made.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain, compress, starmap, takewhile
from operator import is_not
from typing import Any

from vramlens.capture.process.tracked_objects import tracked_of_types
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
        return _youngest_of_types(self._torch.tensor_types, self._mark)

    def all(self) -> list[Any]:
        """Those of the two younger generations."""
        types = self._torch.tensor_types
        return tracked_of_types(types, generation=0) + tracked_of_types(types, generation=1)


def _youngest_of_types(types: Mapping[int, type], mark: object) -> list[Any]:
    """What is younger than a mark and of exactly some types, oldest first.

    Read from the newest on, as far as the mark: hundreds of objects are young, a few are new. All
    in one call of C, as ``tracked_of_types`` is and for its reasons.
    """
    young: list[Any] = []
    new: list[Any] = []
    fill: Iterator[Any] = filter(None, map(young.extend, starmap(gc.get_objects, ((0,),))))
    newest_first = chain.from_iterable(map(reversed, (young,)))
    cut: Iterator[Any] = filter(
        None, map(new.extend, (takewhile(partial(is_not, mark), newest_first),))
    )
    selected = compress(new, map(types.__contains__, map(id, map(type, new))))
    empty: Iterator[Any] = filter(None, map(list.clear, (young, new)))
    return list(chain(fill, cut, selected, empty))[::-1]
