"""BalancedBatchSampler: DistributedSampler's promises, and ranks that hold alike."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramlens.errors import UsageError
from vramlens.recovery.batch_size.balanced_batches import BalancedBatchSampler

SIZES = st.lists(st.integers(0, 5_000), min_size=1, max_size=400)


def samplers(
    lengths: list[int], size: int, world: int, **options: object
) -> list[BalancedBatchSampler]:
    return [
        BalancedBatchSampler(lengths, size, num_replicas=world, rank=rank, **options)  # type: ignore[arg-type]
        for rank in range(world)
    ]


@given(SIZES, st.integers(1, 9), st.integers(1, 9), st.booleans(), st.booleans(), st.booleans())
def test_what_distributed_sampler_promises(
    lengths: list[int], size: int, world: int, packed: bool, shuffle: bool, drop: bool
) -> None:
    if drop and len(lengths) < size * world:
        with pytest.raises(UsageError, match="do not fill"):
            samplers(lengths, size, world, drop_last=True)
        return
    ranks = samplers(lengths, size, world, packed=packed, shuffle=shuffle, drop_last=drop)
    batches = [list(one) for one in ranks]
    assert {len(each) for each in batches} == {len(ranks[0])}
    for step in zip(*batches, strict=True):
        assert len({len(batch) for batch in step}) == 1
    seen = Counter(index for each in batches for batch in each for index in batch)
    if drop:
        assert max(seen.values()) == 1
        assert len(lengths) - len(seen) < size * world
    else:
        assert set(seen) == set(range(len(lengths)))
        assert sum(seen.values()) - len(lengths) < world
    assert [list(one) for one in ranks] == batches  # the same epoch again is the same


def test_against_torch_where_it_is_there() -> None:
    data = pytest.importorskip("torch.utils.data")
    lengths = list(range(103))
    ours = samplers(lengths, 1, 4)
    theirs = data.DistributedSampler(lengths, num_replicas=4, rank=0)
    assert len(ours[0]) == len(theirs)
    loader = data.DataLoader(lengths, batch_sampler=ours[1])
    assert len(list(loader)) == len(ours[1])


def test_epochs_and_seeds_change_the_order() -> None:
    lengths = [random.Random(3).randrange(1000) for _ in range(640)]
    one = samplers(lengths, 4, 4)[0]
    first = list(one)
    one.set_epoch(1)
    assert list(one) != first
    one.set_epoch(0)
    assert list(one) == first
    assert list(samplers(lengths, 4, 4, seed=1)[0]) != first
    assert list(samplers(lengths, 4, 4, shuffle=False)[0]) == list(
        samplers(lengths, 4, 4, shuffle=False, seed=5)[0]
    )


def costs(sampler: BalancedBatchSampler, lengths: list[int], packed: bool) -> list[list[int]]:
    def cost(batch: list[int]) -> int:
        return (
            sum(lengths[i] for i in batch)
            if packed
            else len(batch) * max(lengths[i] for i in batch)
        )

    return [[cost(batch) for batch in step] for step in sampler.steps()]


def at_random(lengths: list[int], size: int, world: int, packed: bool) -> list[list[int]]:
    order = random.Random(7).sample(range(len(lengths)), len(lengths))
    batches = [order[at : at + size] for at in range(0, len(order), size)]
    cost = (
        (lambda b: sum(lengths[i] for i in b))
        if packed
        else (lambda b: len(b) * max(lengths[i] for i in b))
    )
    return [[cost(b) for b in batches[at : at + world]] for at in range(0, len(batches), world)]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("world", [2, 8])
def test_ranks_are_level(packed: bool, world: int) -> None:
    chance = random.Random(5)
    lengths = [min(4096, int(chance.lognormvariate(6, 0.8)) + 16) for _ in range(8 * world * 100)]
    ours = costs(samplers(lengths, 8, world, packed=packed)[0], lengths, packed)
    before = at_random(lengths, 8, world, packed)

    def spread(steps: list[list[int]]) -> float:
        return sum(max(step) - min(step) for step in steps) / sum(max(step) for step in steps)

    assert spread(ours) < 0.1 * spread(before)
    if packed:  # and no step is far above the usual: the job's peak falls
        assert max(map(max, ours)) < 0.75 * max(map(max, before))
    else:
        assert sum(max(step) for step in ours) < 0.7 * sum(max(step) for step in before)


@pytest.mark.parametrize(("rank", "world", "size"), [(2, 2, 1), (-1, 2, 1), (0, 0, 1), (0, 1, 0)])
def test_what_makes_no_sense(rank: int, world: int, size: int) -> None:
    with pytest.raises(UsageError, match="BalancedBatchSampler"):
        BalancedBatchSampler([1, 2], size, num_replicas=world, rank=rank)
    with pytest.raises(UsageError, match="no samples"):
        BalancedBatchSampler([], 1)


def test_the_launcher_tells_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    one = BalancedBatchSampler([1] * 16, 2)
    assert (one.rank, one.num_replicas, len(one)) == (3, 4, 2)
