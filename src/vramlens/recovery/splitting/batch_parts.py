"""The parts of a batch: how many samples a nested batch has, and a few of them as a smaller
batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vramlens.errors import UsageError
from vramlens.recovery.splitting.sample_lists import (
    entries_of,
    is_dataclass_instance,
    is_named_tuple,
    sample_lists,
)

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

SplitFunction = Callable[[Any, int, int], Any]
"""The user's own: (batch, start, stop) -> the samples from start to before stop, as a batch."""


class CannotSplit(UsageError):
    """A batch has no samples along dimension 0, or its leaves disagree about how many."""


class BatchSamples:
    """A batch and the way to take a few of its samples.

    Tensors are split along dimension 0, without a copy. A list holds one item a sample where its
    items are mappings with the same keys, strings or numbers, or where such a list of the same
    length lies beside it: so are the images and targets of a detector. A tuple does where its
    items are mappings and another list or tuple of the same length, or a tensor, lies beside it: so
    does ``tuple(zip(*samples))``. What holds such a list is not one
    itself. All else (numbers, None, 0-dimensional tensors, tensors of length 1 beside longer ones)
    goes with every part.

    Attributes:
        count: how many samples.

    Raises:
        CannotSplit: it cannot be split; the text names the leaf.
    """

    def __init__(
        self, batch: Any, split: SplitFunction | None = None, count: int | None = None
    ) -> None:
        self.batch, self._split = batch, split
        self._listed = sample_lists(batch)
        self._sizes = [size for _, size in self._leaves(batch, "batch")]
        if split is not None:
            self.count = count or max(self._sizes, default=0)
            return
        self.count = self._agreed_count()

    def part(self, start: int, stop: int) -> Any:
        """The samples from ``start`` to before ``stop``; the batch itself where that is all of
        it.
        """
        if (start, stop) == (0, self.count):
            return self.batch
        if self._split is not None:
            return self._split(self.batch, start, stop)
        return self._cut(self.batch, slice(start, stop))

    @property
    def free(self) -> bool:
        """Whether any of the samples can be taken in any order: not where only the user's
        function can split them.
        """
        return self._split is None

    def chosen(self, indices: list[int]) -> Any:
        """Some samples, as copies, in any order (where that is ``free``)."""
        return self._cut(self.batch, indices)

    @property
    def undivided(self) -> str:
        """The first tensor of length 1 beside longer ones, which goes with every part; empty
        where there is none.
        """
        leaves = leaves_of(self.batch)
        return next(
            (path for path, leaf in leaves if leaf.dim() > 1 and leaf.shape[0] == 1 < self.count),
            "",
        )

    def _agreed_count(self) -> int:
        sizes = [(path, size) for path, size in self._leaves(self.batch, "batch") if size != 1]
        if not sizes:
            if 1 in self._sizes:
                return 1
            raise CannotSplit(
                "the batch has no tensor with samples along dimension 0"
                f" (a {type(self.batch).__name__}): use guard(split=lambda batch, start, stop: ...)"
            )
        path, count = sizes[0]
        for other, size in sizes[1:]:
            if size != count:
                raise CannotSplit(
                    f"{other} has {size} along dimension 0 where {path} has {count}: the batch "
                    "cannot be split there; make them equal or use guard(split=lambda batch, "
                    "start, stop: ...)"
                )
        return count

    def _is_listed(self, value: Any) -> bool:
        return id(value) in self._listed

    def _leaves(self, value: Any, path: str) -> Iterator[tuple[str, int]]:
        """What has samples, with its path and how many."""
        if isinstance(value, torch.Tensor):
            if value.dim() == 0:
                return
            if value.is_sparse or value.is_nested:
                kind = "sparse" if value.is_sparse else "nested"
                raise CannotSplit(
                    f"{path} is a {kind} tensor, which has no slices: use guard(split=lambda "
                    "batch, start, stop: ...)"
                )
            yield path, int(value.shape[0])
        elif self._is_listed(value):
            yield path, len(value)
        else:
            for name, inner in entries_of(value):
                yield from self._leaves(inner, f"{path}{name}")

    def _cut(self, value: Any, chosen: slice | list[int]) -> Any:
        """A batch's part, or a part of what lies in it, with some of the samples."""
        if isinstance(value, torch.Tensor):
            has_samples = value.shape[:1] == (self.count,)
            return value[chosen] if has_samples else value
        if self._is_listed(value):
            if isinstance(chosen, slice):
                return value[chosen]
            return type(value)(value[index] for index in chosen)
        return _rebuilt(value, lambda inner: self._cut(inner, chosen))


def leaves_of(value: Any, path: str = "batch") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a nested batch with their paths."""
    if isinstance(value, torch.Tensor):
        yield path, value
    else:
        for name, inner in entries_of(value):
            yield from leaves_of(inner, f"{path}{name}")


def ranges(count: int, size: int) -> list[tuple[int, int]]:
    """The parts of ``count`` samples of at most ``size`` each, as equal as can be, the larger
    first.
    """
    return equal_parts(count, max(1, -(-count // max(1, size))))


def equal_parts(count: int, parts: int) -> list[tuple[int, int]]:
    """So many parts of ``count`` samples, as equal as can be, the larger first."""
    smaller, remainder = divmod(count, parts)
    bounds, start = [], 0
    for index in range(parts):
        stop = start + smaller + (index < remainder)
        bounds.append((start, stop))
        start = stop
    return bounds


def _rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """A container of the same type whose entries are changed; anything else as it is."""
    if isinstance(value, Mapping):
        return _mapping_like(value, {key: change(inner) for key, inner in value.items()})
    if is_named_tuple(value):
        return type(value)(*map(change, value))
    if type(value) in (list, tuple):
        return type(value)(map(change, value))
    if is_dataclass_instance(value):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **{name: change(getattr(value, name)) for name in names})
    return value


def _mapping_like(mapping: Mapping[Any, Any], entries: dict[Any, Any]) -> Any:
    """A mapping of the same type, where that can be made from a dict (as a tokenizer's output
    can).
    """
    if type(mapping) is dict:
        return entries
    try:
        return type(mapping)(entries)  # type: ignore[call-arg]
    except Exception:
        return entries
