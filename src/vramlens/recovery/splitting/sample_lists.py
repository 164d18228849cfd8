"""Lists in a batch that hold one item a sample, beside those that are only containers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch


@dataclass(frozen=True, slots=True)
class NestedList:
    """A list or plain tuple of a batch.

    Attributes:
        outer: the lists that it lies in.
    """

    entries: Sequence[Any]
    outer: tuple[Any, ...]

    @property
    def holds_mappings(self) -> bool:
        """Whether all entries are dicts, as the targets of a detector are."""
        return all(isinstance(entry, Mapping) for entry in self.entries)

    @property
    def is_uniform(self) -> bool:
        """Whether it is a list whose dicts all have the same keys."""
        is_list = isinstance(self.entries, list)
        return is_list and len({frozenset(entry) for entry in self.entries}) == 1

    @property
    def holds_words(self) -> bool:
        """Whether all entries are strings or numbers."""
        return all(isinstance(entry, (str, int, float)) for entry in self.entries)

    def lies_beside(self, other: NestedList) -> bool:
        """Whether neither is the other, or lies in it."""
        lists_above = (self.entries, *self.outer)
        is_outer = any(above is other.entries for above in lists_above)
        return not is_outer and not any(above is self.entries for above in other.outer)


def sample_lists(batch: Any) -> frozenset[int]:
    """The lists and tuples that hold one item a sample, by identity; all others are containers."""
    nested = list(_nested_lists(batch))
    detector_lists = [
        entry
        for entry in nested
        if entry.holds_mappings and (_is_accompanied(entry, nested, batch) or entry.is_uniform)
    ]
    if detector_lists:
        return _like_detector_lists(detector_lists, nested)
    return _lists_of_words(nested, batch)


def is_named_tuple(value: Any) -> bool:
    """Whether it is a tuple with names for its entries."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def is_dataclass_instance(value: Any) -> bool:
    """Whether it is a dataclass, and not the class itself."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def entries_of(batch: Any) -> Iterator[tuple[str, Any]]:
    """Yields what lies directly in a mapping, list, tuple or dataclass, with how it is reached."""
    if isinstance(batch, Mapping):
        for key, inner in batch.items():
            yield f"[{key!r}]", inner
    elif is_named_tuple(batch):
        for key in batch._fields:
            yield f".{key}", getattr(batch, key)
    elif isinstance(batch, (list, tuple)):
        for index, inner in enumerate(batch):
            yield f"[{index}]", inner
    elif is_dataclass_instance(batch):
        for field in dataclasses.fields(batch):
            yield f".{field.name}", getattr(batch, field.name)


def tensors_of_batch(batch: Any, left_out: Any = None) -> Iterator[torch.Tensor]:
    """Yields the tensors of a batch, but for those that lie in one of its lists."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif left_out is None or batch is not left_out:
        for _, inner in entries_of(batch):
            yield from tensors_of_batch(inner, left_out)


def _is_accompanied(nested: NestedList, others: list[NestedList], batch: Any) -> bool:
    """Whether a list or tensor of the same length lies beside a list."""
    count = len(nested.entries)
    if any(len(other.entries) == count and nested.lies_beside(other) for other in others):
        return True
    if count <= 1:
        return False
    beside = tensors_of_batch(batch, left_out=nested.entries)
    return any(tensor.shape[:1] == (count,) for tensor in beside)


def _like_detector_lists(
    detector_lists: list[NestedList], nested: list[NestedList]
) -> frozenset[int]:
    """These lists, and all of their length and kind that do not contain one of them."""
    lengths = {len(entry.entries) for entry in detector_lists}
    if len(lengths) > 1:
        return frozenset()
    containers = {id(outer) for entry in detector_lists for outer in entry.outer}
    kinds = {list, *(type(entry.entries) for entry in detector_lists)}
    return frozenset(
        id(other.entries)
        for other in nested
        if len(other.entries) in lengths
        and id(other.entries) not in containers
        and type(other.entries) in kinds
    )


def _lists_of_words(nested: list[NestedList], batch: Any) -> frozenset[int]:
    """The lists that are as long as those of strings or numbers, where these have one length."""
    lists = [entry for entry in nested if isinstance(entry.entries, list)]
    lengths = {len(entry.entries) for entry in lists if entry.holds_words}
    dimensions = {int(tensor.shape[0]) for tensor in tensors_of_batch(batch) if tensor.dim()}
    lengths &= dimensions - {1} or lengths
    if len(lengths) != 1:
        return frozenset()
    return frozenset(id(entry.entries) for entry in lists if len(entry.entries) in lengths)


def _nested_lists(batch: Any, outer: tuple[Any, ...] = ()) -> Iterator[NestedList]:
    """Yields the lists and plain tuples that are not empty, each with those that it lies in."""
    if isinstance(batch, torch.Tensor):
        return
    if (isinstance(batch, list) or type(batch) is tuple) and batch:
        nested = NestedList(batch, outer)
        yield nested
        if isinstance(batch, list) and nested.holds_mappings:
            return  # one item a sample: its own lists are not the batch's
        outer = (*outer, batch)
    for _, inner in entries_of(batch):
        yield from _nested_lists(inner, outer)
