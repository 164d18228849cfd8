"""Batches of a distributed job that cost each rank the same, by the samples' lengths; every
sample once an epoch.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence

from vramlens.argument_types import flag, number_given, optional, takes
from vramlens.capture.process_group import initialized_group
from vramlens.errors import UsageError
from vramlens.ground.launcher import number_in

_WINDOW_STEPS = 64
"""Samples change places within so many steps: enough to level them, and the order stays near the
shuffled one.
"""


class BalancedBatchSampler:
    """Lists of indices for a ``DataLoader(batch_sampler=...)``, so that in each step all ranks hold
    alike.

    It keeps what ``torch.utils.data.DistributedSampler`` promises: as many batches on every rank,
    every sample once an epoch (a few twice, to fill the last step up; with ``drop_last`` a few not
    at all), the same order for the same seed, another one each epoch after ``set_epoch``. Ranks
    agree without talking: each works out all ranks' batches.

    Args:
        lengths: of all samples, such as tokens; or whatever a sample costs.
        batch_size: samples in each rank's batch.
        packed: whether a batch costs the sum of its lengths (packed or jagged batches: then every
            batch gets long and short ones); else as many times its longest as it has samples
            (padded ones: then like lengths come together, and all ranks pad to nearly the same).
        num_replicas: ranks of the job; by default torch.distributed's, else WORLD_SIZE.
        rank: of this process; by default torch.distributed's, else RANK.
        shuffle: whether the order changes each epoch.
        seed: of the order; the same on every rank.
        drop_last: whether samples that do not fill a step are left out.

    Raises:
        UsageError: there are no samples, or sizes and ranks make no sense.
    """

    @takes(
        batch_size=number_given,
        packed=flag,
        num_replicas=optional(number_given),
        rank=optional(number_given),
        shuffle=flag,
        seed=number_given,
        drop_last=flag,
    )
    def __init__(  # noqa: PLR0913 - public: its options are keywords
        self,
        lengths: Sequence[int],
        batch_size: int,
        *,
        packed: bool = False,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        place = _place()
        self.rank = place[0] if rank is None else rank
        self.num_replicas = place[1] if num_replicas is None else num_replicas
        if batch_size < 1 or not 0 <= self.rank < self.num_replicas:
            raise UsageError(
                f"BalancedBatchSampler: batch_size {batch_size}, rank {self.rank} of"
                f" {self.num_replicas}: each must be at least 1, and the rank must be smaller "
                "than their number"
            )
        self.lengths = [int(length) for length in lengths]
        if not self.lengths:
            raise UsageError("BalancedBatchSampler: there are no samples")
        self.batch_size, self.packed = batch_size, packed
        self.shuffle, self.seed, self.drop_last, self.epoch = shuffle, seed, drop_last, 0
        samples_per_step = self.num_replicas * batch_size
        self._steps, left_over = divmod(len(self.lengths), samples_per_step)
        self._last = 0 if drop_last else -(-left_over // self.num_replicas)
        if drop_last and not self._steps:
            raise UsageError(
                f"BalancedBatchSampler: {len(self.lengths)} samples do not fill one step of"
                f" {samples_per_step}"
            )

    def set_epoch(self, epoch: int) -> None:
        """Makes the next pass another order; to be called on every rank with the same number."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self._steps + (self._last > 0)

    def __iter__(self) -> Iterator[list[int]]:
        for step in self.steps():
            yield step[self.rank]

    def steps(self) -> Iterator[list[list[int]]]:
        """Each step's batches, one a rank: the same on every rank."""
        chance = random.Random(f"{self.seed} {self.epoch}")
        order = list(range(len(self.lengths)))
        if self.shuffle:
            chance.shuffle(order)
        samples_per_step = self.num_replicas * self.batch_size
        full, incomplete = (
            order[: self._steps * samples_per_step],
            order[self._steps * samples_per_step :],
        )
        while self._last and len(incomplete) < self._last * self.num_replicas:
            incomplete.append(order[len(incomplete) % len(order)])
        for start in range(0, len(full), _WINDOW_STEPS * samples_per_step):
            window = full[start : start + _WINDOW_STEPS * samples_per_step]
            yield from self._level(window, self.batch_size, chance)
        if self._last:
            yield from self._level(incomplete, self._last, chance)

    def _level(self, samples: list[int], size: int, chance: random.Random) -> list[list[list[int]]]:
        """Whole steps of these samples, leveled: batches of ``size``, one a rank."""
        lengths, ranks = self.lengths, self.num_replicas
        ordered = sorted(samples, key=lambda index: -lengths[index])
        if self.packed:
            batches = _evenly(ordered, len(ordered) // size, lengths)
            # Batches of like sums meet in one step.
            batches.sort(key=lambda batch: sum(lengths[index] for index in batch))
            steps = [batches[at : at + ranks] for at in range(0, len(batches), ranks)]
        else:
            samples_per_step = ranks * size
            steps = [
                _dealt(ordered[at : at + samples_per_step], ranks)
                for at in range(0, len(ordered), samples_per_step)
            ]
        if self.shuffle:
            for step in steps:
                chance.shuffle(step)  # no rank gets the longer half of every step
            chance.shuffle(steps)
        return steps


def _evenly(ordered: Sequence[int], count: int, lengths: Sequence[int]) -> list[list[int]]:
    """So many batches of equal numbers and nearly equal sums: each round's longest goes where
    least is.
    """
    batches: list[list[int]] = [[] for _ in range(count)]
    sums = [0] * count
    for start in range(0, len(ordered), count):
        for index, batch in zip(
            ordered[start : start + count], sorted(range(count), key=sums.__getitem__), strict=True
        ):
            batches[batch].append(index)
            sums[batch] += lengths[index]
    return batches


def _dealt(ordered: Sequence[int], ranks: int) -> list[list[int]]:
    """One step's samples, longest first, dealt to the ranks forth and back."""
    batches: list[list[int]] = [[] for _ in range(ranks)]
    for place, index in enumerate(ordered):
        turn, at = divmod(place, ranks)
        batches[at if turn % 2 == 0 else ranks - 1 - at].append(index)
    return batches


def _place() -> tuple[int, int]:
    """This process's rank and how many there are."""
    group = initialized_group()
    if group is not None:
        return int(group.get_rank()), int(group.get_world_size())
    rank, world = (number_in(os.environ, name) for name in ("RANK", "WORLD_SIZE"))
    return (0, 1) if rank is None or world is None else (rank, world)
