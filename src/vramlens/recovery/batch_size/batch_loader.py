"""Batches that fill a memory budget and never pass it: the size from a fit, ragged samples by
their length.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from vramlens.argument_types import (
    flag,
    function_given,
    module,
    number_given,
    optional,
    required_size,
    takes,
)
from vramlens.errors import UsageError
from vramlens.recovery.batch_size.batch_size_answer import BatchSize
from vramlens.recovery.batch_size.largest_batch import find_batch_size, likely_size
from vramlens.recovery.batch_size.peak_fit import LengthCost, PeakFit, length_cost
from vramlens.recovery.losses.part_losses import LossFunction
from vramlens.recovery.meters import Meter
from vramlens.units import size_in_bytes

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch


_USED_SHARE = 0.985
"""Of the memory: the rest is for what rounding to blocks takes."""
_LONG_ENOUGH_TO_HALVE = 4
_MOST_SAMPLES = 10**9


class TokenBudgetSampler:
    """Lists of indices, each a batch that costs at most a budget: so many samples times the cost of
    its longest.

    Samples of like length come together, batches in random order; every sample comes once an epoch,
    except those that alone pass the budget, which are listed in ``too_long``.

    Args:
        lengths: of all samples.
        cost: bytes of one sample by its length.
        budget_bytes: for a batch.
        shuffle: another order each epoch, the same for the same seed.
        most: samples in a batch, at most.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        cost: Callable[[int], float],
        budget_bytes: float,
        *,
        shuffle: bool = True,
        seed: int = 0,
        most: int | None = None,
    ) -> None:
        self._lengths, self._cost, self._budget = list(lengths), cost, budget_bytes
        self._shuffle, self._seed, self._most, self._epoch = shuffle, seed, most, 0
        self.too_long = [
            index for index, length in enumerate(self._lengths) if cost(length) > budget_bytes
        ]
        self._planned: list[list[int]] | None = None
        if self._lengths and len(self.too_long) == len(self._lengths):
            raise UsageError(
                "not even a single sample fits the budget: raise max_memory or shorten the samples"
            )

    def __iter__(self) -> Iterator[list[int]]:
        batches, self._planned = self._planned or self._batches(), None
        self._epoch += 1
        return iter(batches)

    def __len__(self) -> int:
        """Batches in the epoch that comes next."""
        if self._planned is None:
            self._planned = self._batches()
        return len(self._planned)

    def set_epoch(self, epoch: int) -> None:
        """The epoch that comes next, for the order."""
        self._epoch, self._planned = epoch, None

    def _is_full(self, samples: int, longest: int) -> bool:
        if self._most is not None and samples >= self._most:
            return True
        return (samples + 1) * self._cost(longest) > self._budget

    def _batches(self) -> list[list[int]]:
        chance = random.Random(f"{self._seed} {self._epoch}")
        left_out = set(self.too_long)
        order = [index for index in range(len(self._lengths)) if index not in left_out]
        if self._shuffle:
            chance.shuffle(order)
        order.sort(key=lambda index: -self._lengths[index])  # stable: equal lengths stay shuffled
        batches: list[list[int]] = []
        batch: list[int] = []
        longest = 0
        for index in order:
            if not batch or self._is_full(len(batch), longest):
                batch, longest = [], self._lengths[index]
                batches.append(batch)
            batch.append(index)
        if self._shuffle:
            chance.shuffle(batches)
        return batches


class AdaptiveBatchLoader:
    """A data loader whose batches fit a memory budget, from the fit of ``find_batch_size``.

    All samples alike: batches of the largest size that fits. With ``length_fn``, ragged ones: each
    batch has as many samples as fit at the length of its longest. The fit says what model and
    optimizer take by themselves, and what a
    sample takes: not allocated bytes over the batch size, which counts the model into the samples.

    Args:
        dataset: with ``len`` and indices.
        max_memory: for the whole process: bytes, or as 22GiB.
        found: what ``find_batch_size`` gave; else ``model``, ``make_batch``, ``loss_fn`` and
            ``optimizer`` to find it with. With ``length_fn``, ``make_batch(n, length)`` makes
            samples of a length.
        length_fn: sample -> its length; called once for each sample.
        longest: the length at which ``found`` was measured; by default the dataset's longest.
        shuffle: whether the order changes each epoch.
        seed: of the order.
        options: for ``torch.utils.data.DataLoader`` (num_workers, collate_fn, pin_memory, ...).

    Attributes:
        found: the fit; ``cost``: bytes of a sample by length (ragged data only).

    Raises:
        UsageError: nothing to fit with, or not even one sample fits.
    """

    @takes(
        max_memory=required_size,
        model=optional(module),
        make_batch=function_given,
        loss_fn=function_given,
        length_fn=function_given,
        longest=optional(number_given),
        shuffle=flag,
        seed=number_given,
    )
    def __init__(  # noqa: PLR0913 - public: its options are keywords
        self,
        dataset: Any,
        max_memory: int | str,
        *,
        found: BatchSize | None = None,
        model: torch.nn.Module | None = None,
        make_batch: Callable[..., Any] | None = None,
        loss_fn: LossFunction | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        length_fn: Callable[[Any], int] | None = None,
        longest: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        meter: Meter | None = None,
        **options: Any,
    ) -> None:
        self._limit = size_in_bytes(max_memory)
        lengths = None
        if length_fn is not None:
            lengths = [int(length_fn(dataset[index])) for index in range(len(dataset))]
            longest = longest or max(lengths, default=0)
        at_half_length: BatchSize | None = None
        if found is None:
            search = _search_by_length(model, make_batch, loss_fn, optimizer, self._limit, meter)
            found, at_half_length = search(longest), _at_half_length(search, longest)
        if found.fit is None or not found.size:
            raise UsageError(f"AdaptiveBatchLoader: not even a single sample fits in {max_memory}")
        self.found = found
        self.cost: LengthCost | None = None
        if lengths is None:
            options |= self._options_for_equal_samples(found.fit, shuffle, seed)
        else:
            assert longest is not None
            self.cost = _cost_by_length(longest, found.fit, at_half_length)
            room = self._limit * _USED_SHARE - _base_bytes(found, found.fit)
            options["batch_sampler"] = TokenBudgetSampler(
                lengths, self.cost, room, shuffle=shuffle, seed=seed
            )
        self.loader = torch.utils.data.DataLoader(dataset, **options)

    def _options_for_equal_samples(self, fit: PeakFit, shuffle: bool, seed: int) -> dict[str, Any]:
        options: dict[str, Any] = {"batch_size": self._size(self.found, fit), "shuffle": shuffle}
        if shuffle:
            options["generator"] = torch.Generator().manual_seed(seed)
        return options

    def _size(self, largest: BatchSize, fit: PeakFit) -> int:
        """The samples in a batch where all cost the same; no more than were found to fit."""
        size = int(likely_size(fit, self._limit))
        if self._limit >= largest.limit_bytes:
            size = min(size, largest.size)
        return max(1, min(size, _MOST_SAMPLES))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)


def _search_by_length(
    model: torch.nn.Module | None,
    make_batch: Callable[..., Any] | None,
    loss_fn: LossFunction | None,
    optimizer: torch.optim.Optimizer | None,
    limit_bytes: int,
    meter: Meter | None,
) -> Callable[[int | None], BatchSize]:
    """Finds the batch size at a length of the samples; None: they have none."""
    if model is None or make_batch is None or loss_fn is None:
        raise UsageError(
            "AdaptiveBatchLoader: pass found=find_batch_size(...), or model, make_batch and loss_fn"
        )

    def search(length: int | None) -> BatchSize:
        make = make_batch if length is None else (lambda n: make_batch(n, length))
        return find_batch_size(model, make, loss_fn, optimizer, limit=limit_bytes, meter=meter)

    return search


def _at_half_length(
    search: Callable[[int | None], BatchSize], longest: int | None
) -> BatchSize | None:
    if longest is None or longest < _LONG_ENOUGH_TO_HALVE:
        return None
    return search(longest // 2)


def _cost_by_length(longest: int, fit: PeakFit, at_half_length: BatchSize | None) -> LengthCost:
    points = [(longest, _sample_bytes(fit))]
    if at_half_length is not None and at_half_length.fit is not None:
        points.append((longest // 2, _sample_bytes(at_half_length.fit)))
    return length_cost(points)


def _sample_bytes(fit: PeakFit) -> float:
    """What a sample takes, and what is lost between blocks for it."""
    return fit.per_sample_bytes + fit.lost_per_sample_bytes


def _base_bytes(largest: BatchSize, fit: PeakFit) -> float:
    """What a step takes beside its samples."""
    beside_samples = fit.low_bytes(largest.size) - fit.per_sample_bytes * largest.size
    return max(fit.persistent_bytes, beside_samples)
