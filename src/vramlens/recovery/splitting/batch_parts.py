"""The parts of a batch: how many samples a nested batch has, and a few of them as a smaller
batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vramlens.errors import UsageError

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

SplitFunction = Callable[[Any, int, int], Any]
"""The user's own: (batch, start, stop) -> the samples from start to before stop, as a batch."""


class CannotSplit(UsageError):
    """A batch has no samples along dimension 0, or its leaves disagree about how many."""


class Samples:
    """A batch and the way to take a few of its samples.

    Tensors are split along dimension 0, without a copy. A list holds one item a sample where its
    items are mappings with the same keys, strings or numbers, or where such a list of the same
    length lies beside it: so are the images and targets of a detector. A tuple does where its items
        are mappings and another list or tuple of the same length,
    or a tensor, lies beside it: so does ``tuple(zip(*samples))``. What holds such a list is none
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
        self._listed: frozenset[int] = frozenset()
        self._listed = self._lists(batch)
        self._sizes = [size for _, size in self._leaves(batch, "batch")]
        if split is not None:
            self.count = count or max(self._sizes, default=0)
            return
        self.count = self._agreed()

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

    def _lists(self, batch: Any) -> frozenset[int]:
        """The lists and tuples that hold one item a sample, by identity; all others are
        containers.
        """
        found = list(_all_lists(batch))
        tensors = {int(leaf.shape[0]) for _, leaf in leaves_of(batch) if leaf.dim()} - {1}
        strong = []
        for items, above in found:
            if not all(isinstance(item, Mapping) for item in items):
                continue
            accompanied = any(
                len(other) == len(items)
                and not any(one is other for one in (items, *above))
                and not any(one is items for one in around)
                for other, around in found
            ) or any(
                leaf.dim() and leaf.shape[0] == len(items) > 1 for leaf in _around(batch, items)
            )
            alike = isinstance(items, list) and len({frozenset(item) for item in items}) == 1
            if accompanied or alike:
                strong.append((items, above))
        if strong:
            if len({len(items) for items, _ in strong}) > 1:
                return frozenset()
            containers = {id(one) for _, above in strong for one in above}
            kinds = {type(items) for items, _ in strong}
            size = len(strong[0][0])
            return frozenset(
                id(items) for items, _ in found
                if len(items) == size and id(items) not in containers and (type(items) is list or type(items) in kinds)
            )  # fmt: skip
        lists = [items for items, _ in found if isinstance(items, list)]
        weak = {
            len(items)
            for items in lists
            if all(isinstance(item, (str, int, float)) for item in items)
        }
        sizes = weak & tensors if tensors else weak
        if len(sizes) != 1:
            return frozenset()
        return frozenset(id(items) for items in lists if {len(items)} == sizes)

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
                    f"{path} is a {kind} tensor, which has no slices: give guard(split=lambda batch, start, stop: ...)"
                )
            yield path, int(value.shape[0])
        elif self._is_listed(value):
            yield path, len(value)
        else:
            for name, inner in _items(value):
                yield from self._leaves(inner, f"{path}{name}")

    def _cut(self, value: Any, which: slice | list[int]) -> Any:
        def cut(inner: Any) -> Any:
            return self._cut(inner, which)

        if isinstance(value, torch.Tensor):
            if value.dim() == 0 or value.shape[0] != self.count:
                return value
            return value[which]
        if self._is_listed(value):
            return (
                value[which]
                if isinstance(which, slice)
                else type(value)(value[index] for index in which)
            )
        if isinstance(value, Mapping):
            return _rebuilt(value, {key: cut(inner) for key, inner in value.items()})
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(cut(inner) for inner in value))
        if type(value) in (list, tuple):
            return type(value)(cut(inner) for inner in value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {
                field.name: getattr(value, field.name)
                for field in dataclasses.fields(value)
                if field.init
            }
            return dataclasses.replace(
                value, **{name: cut(inner) for name, inner in fields.items()}
            )
        return value


def leaves_of(value: Any, path: str = "batch") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a nested batch with their paths."""
    if isinstance(value, torch.Tensor):
        yield path, value
    else:
        for name, inner in _items(value):
            yield from leaves_of(inner, f"{path}{name}")


def ranges(count: int, size: int) -> list[tuple[int, int]]:
    """The parts of ``count`` samples of at most ``size`` each, as equal as can be, the larger
    first.
    """
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


def _all_lists(
    value: Any, above: tuple[Any, ...] = ()
) -> Iterator[tuple[Sequence[Any], tuple[Any, ...]]]:
    """Lists and plain tuples that are not empty, each with those that it lies in."""
    if isinstance(value, torch.Tensor):
        return
    if (isinstance(value, list) or type(value) is tuple) and value:
        yield value, above
        if isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
            return  # one item a sample: its own lists are none of the batch's
        above = (*above, value)
    for _, inner in _items(value):
        yield from _all_lists(inner, above)


def _around(value: Any, left_out: Any) -> Iterator[torch.Tensor]:
    """The tensors of a batch that do not lie in one of its lists."""
    if isinstance(value, torch.Tensor):
        yield value
    elif value is not left_out:
        for _, inner in _items(value):
            yield from _around(inner, left_out)


def _rebuilt(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """A mapping of the same type, where that can be made from a dict (as a tokenizer's output
    can).
    """
    if type(value) is dict:
        return items
    try:
        return type(value)(items)  # type: ignore[call-arg]
    except Exception:
        return items


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"
