"""The parts of a batch: how many samples a nested batch has, and a few of them as a smaller batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vramlens.errors import UsageError

if TYPE_CHECKING:
    import torch
else:
    from vramlens.recovery.late_torch import torch

SplitFunction = Callable[[Any, int, int], Any]
"""The user's own: (batch, start, stop) -> the samples from start to before stop, as a batch."""


class CannotSplit(UsageError):
    """A batch has no samples along dimension 0, or its leaves disagree about how many."""


class Samples:
    """A batch and the way to take a few of its samples.

    Tensors are split along dimension 0, without a copy. A list holds one item a sample where its items are mappings,
    strings or numbers, or where such a list of the same length lies beside it: so are the images and targets of a
    detector. All else (numbers, None, 0-dimensional tensors, tensors of length 1 beside
    longer ones) goes with every part.

    Attributes:
        count: how many samples.

    Raises:
        CannotSplit: it cannot be split; the text names the leaf.
    """

    def __init__(self, batch: Any, split: SplitFunction | None = None, count: int | None = None) -> None:
        self.batch, self._split = batch, split
        self._listed = self._lists(batch)
        self._sizes = [size for _, size in self._leaves(batch, "batch")]
        if split is not None:
            self.count = count or max(self._sizes, default=0)
            return
        self.count = self._agreed()

    def part(self, start: int, stop: int) -> Any:
        """The samples from ``start`` to before ``stop``; the batch itself where that is all of it."""
        if (start, stop) == (0, self.count):
            return self.batch
        if self._split is not None:
            return self._split(self.batch, start, stop)
        return self._cut(self.batch, slice(start, stop))

    @property
    def reversible(self) -> bool:
        """Whether the samples can be put in another order: not where only the user's function can split them."""
        return self._split is None

    def reversed(self) -> Any:
        """The batch with its samples in the opposite order."""
        return self._cut(self.batch, slice(None, None, -1))

    def _agreed(self) -> int:
        sizes = [(path, size) for path, size in self._leaves(self.batch, "batch") if size != 1]
        if not sizes:
            if 1 in self._sizes:
                return 1
            raise CannotSplit(
                f"the batch has no tensor with samples along dimension 0 ({_kind(self.batch)}): give"
                " guard(split=lambda batch, start, stop: ...)"
            )
        path, count = sizes[0]
        for other, size in sizes[1:]:
            if size != count:
                raise CannotSplit(
                    f"{other} has {size} along dimension 0 where {path} has {count}: the batch cannot be split there;"
                    " make them equal or give guard(split=lambda batch, start, stop: ...)"
                )
        return count

    def _lists(self, batch: Any) -> int | None:
        """The length of lists that hold one item a sample; None where lists are containers."""
        lists = [items for items in _all_lists(batch) if items]
        strong = {len(items) for items in lists if all(isinstance(item, Mapping) for item in items)}
        if strong:
            return strong.pop() if len(strong) == 1 else None
        weak = {len(items) for items in lists if all(isinstance(item, (str, int, float)) for item in items)}
        sizes = {int(leaf.shape[0]) for _, leaf in leaves_of(batch) if leaf.dim()} - {1}
        found = weak & sizes if sizes else weak
        return found.pop() if len(found) == 1 else None

    def _is_listed(self, value: Any) -> bool:
        return isinstance(value, list) and self._listed is not None and len(value) == self._listed

    def _leaves(self, value: Any, path: str) -> Iterator[tuple[str, int]]:
        """What has samples, with its path and how many."""
        if isinstance(value, torch.Tensor):
            if value.dim() == 0:
                return
            if value.is_sparse or value.is_nested:
                kind = "sparse" if value.is_sparse else "nested"
                raise CannotSplit(
                    f"{path} is a {kind} tensor, which has no slices: give guard(split=lambda batch, start, stop: ...)"
                )
            yield path, int(value.shape[0])
        elif self._is_listed(value):
            yield path, len(value)
        else:
            for name, inner in _items(value):
                yield from self._leaves(inner, f"{path}{name}")

    def _cut(self, value: Any, which: slice) -> Any:
        if isinstance(value, torch.Tensor):
            if value.dim() == 0 or value.shape[0] != self.count:
                return value
            return value.flip(0) if which.step else value[which]
        if self._is_listed(value):
            return value[which]
        if isinstance(value, Mapping):
            return _rebuilt(value, {key: self._cut(inner, which) for key, inner in value.items()})
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self._cut(inner, which) for inner in value))
        if type(value) in (list, tuple):
            return type(value)(self._cut(inner, which) for inner in value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
            return dataclasses.replace(value, **{name: self._cut(inner, which) for name, inner in fields.items()})
        return value


def leaves_of(value: Any, path: str = "batch") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a nested batch with their paths."""
    if isinstance(value, torch.Tensor):
        yield path, value
    else:
        for name, inner in _items(value):
            yield from leaves_of(inner, f"{path}{name}")


def ranges(count: int, size: int) -> list[tuple[int, int]]:
    """The parts of ``count`` samples of at most ``size`` each, as equal as can be, the larger first."""
    return equal_parts(count, max(1, -(-count // max(1, size))))


def equal_parts(count: int, parts: int) -> list[tuple[int, int]]:
    """So many parts of ``count`` samples, as equal as can be, the larger first."""
    least, more = divmod(count, parts)
    bounds, start = [], 0
    for index in range(parts):
        stop = start + least + (index < more)
        bounds.append((start, stop))
        start = stop
    return bounds


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield f"[{key!r}]", inner
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for key in value._fields:
            yield f".{key}", getattr(value, key)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield f"[{index}]", inner
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield f".{field.name}", getattr(value, field.name)


def _all_lists(value: Any) -> Iterator[Sequence[Any]]:
    if isinstance(value, list):
        yield value
        if value and all(isinstance(item, Mapping) for item in value):
            return  # one item a sample: its own lists are none of the batch's
    if not isinstance(value, torch.Tensor):
        for _, inner in _items(value):
            yield from _all_lists(inner)


def _rebuilt(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """A mapping of the same type, where that can be made from a dict (as a tokenizer's output can)."""
    if type(value) is dict:
        return items
    try:
        return type(value)(items)  # type: ignore[call-arg]
    except Exception:
        return items


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"
