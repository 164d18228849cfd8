"""Steps beside each other: the table that serves every rank says what each rank set beside the
others says.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.recordings import data_of, read
from support.summaries import line, named_causes, rank_of, trainers
from vramlens.ranks import RankSummary, compare, summarise
from vramlens.ranks.peers import steps_against_peers as steps_module
from vramlens.ranks.peers.steps_against_peers import PeerStepPeaks
from vramlens.ranks.rank_summary import RankFailure
from vramlens.units import MIB


@pytest.fixture(scope="module")
def clean() -> RankSummary:
    return replace(summarise(read(data_of("recordings/gpt_annotated")), 0), lines=())


def one_by_one(own: RankSummary, peers: list[RankSummary], least_bytes: float) -> bool:
    """The rule, written for one rank."""
    others = [one.step_peaks for one in peers if one is not own and len(one.step_peaks) > 2]
    if not others or len(own.step_peaks) < 3:
        return False  # by their lines, of which these ranks have none: even
    count = min(len(own.step_peaks), *(len(steps) for steps in others))
    theirs = np.array([steps[1:count] for steps in others], np.float64)
    mine = np.array(own.step_peaks[1:count], np.float64)
    if float(np.median(np.ptp(theirs, axis=1) / theirs.max(axis=1))) < 0.02:
        return False
    if count < 4:
        return True
    if mine.max() >= 1.25 * theirs.max():
        return False
    highest = theirs.max(axis=1)
    apart = np.ptp(highest)
    if len(theirs) > 1 and apart <= 0.02 * highest.max():
        above = int((mine > highest.max() + max(least_bytes, 5 * apart)).sum())
        if above and (len(theirs) + 1.0) ** (1 - above) <= 0.05:
            return False
    more = mine - np.median(theirs, axis=0)
    return bool(more.mean() < max(least_bytes, 5 * float(more.std(ddof=1)) / len(more) ** 0.5))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(st.integers(900, 1200), min_size=0, max_size=9), min_size=1, max_size=9),
    st.integers(0, 60),
    st.integers(0, 40),
)
def test_it_says_what_each_beside_the_others_says(
    clean: RankSummary, peaks: list[list[int]], least_bytes: int, more: int
) -> None:
    peaks[0] = [peak + more * 10 for peak in peaks[0]]
    ranks = [replace(clean, rank=rank, step_peaks=tuple(steps)) for rank, steps in enumerate(peaks)]
    table = PeerStepPeaks(ranks)
    for own in ranks:
        assert table.is_chance(own, least_bytes) == one_by_one(own, ranks, least_bytes)


BUCKETS = (940, 1000, 960, 1000, 980, 1000, 940, 960)


def in_buckets(
    clean: RankSummary, world: int, large: dict[int, int], most: dict[int, int]
) -> list[RankSummary]:
    """Ranks of batches that vary up to 1000, or another most; some have so many steps of 1120."""
    ranks = []
    for rank in range(world):
        limit = most.get(rank, 1000)
        steps = [min(limit, step) if step < 1000 else limit for step in BUCKETS]
        steps[-1 - large.get(rank, 0) : -1] = [1120] * large.get(rank, 0)
        ranks.append(replace(clean, rank=rank, step_peaks=(900, *steps)))
    return ranks


@pytest.mark.parametrize(
    ("world", "large", "most", "chance"),
    [
        pytest.param(8, {5: 3}, {}, False, id="three, all on one rank of eight"),
        pytest.param(8, {5: 2}, {}, True, id="two may fall on one rank"),
        pytest.param(32, {5: 2}, {}, False, id="not on one of 32"),
        pytest.param(32, {5: 1}, {}, True, id="one step is on some rank"),
        pytest.param(4, {1: 3}, {}, True, id="three on one rank of four"),
        pytest.param(4, {1: 4}, {}, False, id="four on one rank of four"),
        pytest.param(8, {5: 3, 2: 1}, {}, True, id="another rank has one, too"),
        pytest.param(8, {5: 3}, {2: 1060}, True, id="the others do not agree on the most"),
        pytest.param(8, {5: 3}, {2: 1004}, False, id="they nearly do"),
        pytest.param(2, {1: 7}, {}, True, id="of two, the other one may be the odd one"),
    ],
)
def test_steps_above_what_all_others_agree_on_are_no_chance(
    clean: RankSummary, world: int, large: dict[int, int], most: dict[int, int], chance: bool
) -> None:
    """A limit that all but one keep to is a setting."""
    ranks = in_buckets(clean, world, large, most)
    odd = max(large, key=lambda rank: large[rank])
    assert PeerStepPeaks(ranks).is_chance(ranks[odd], 200 if world == 2 else 20) == chance
    assert PeerStepPeaks(ranks).is_chance(ranks[0], 20)


def test_a_rank_that_alone_ran_out_of_memory_needed_one_such_step(clean: RankSummary) -> None:
    lines = trainers(1)[0].lines
    scale = MIB
    ranks = []
    for rank in in_buckets(clean, 8, {5: 1}, {}):
        size = 300 if rank.rank == 5 else 180
        tokens = line(60, "activations", 1, size * scale, per_step=1)
        peaks = tuple(step * scale for step in rank.step_peaks)
        summary = rank_of(rank.rank, 8, [*lines, tokens], step_peaks=peaks)
        ranks.append(summary)
    assert compare(ranks).differences == ()
    failure = RankFailure(1, 7, 400 * scale, ranks[5].lines[-1].place, died=True)
    ranks[5] = replace(ranks[5], failure=failure)
    assert named_causes(compare(ranks)) == [((5,), "uneven_batch")]
    ranks[2] = replace(ranks[2], step_peaks=tuple(1060 * scale for _ in ranks[2].step_peaks))
    assert compare(ranks).differences == ()


def test_of_very_many_steps_some_are_enough(
    clean: RankSummary, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(3)
    peaks = random.integers(900, 1100, (8, 4000))
    peaks[3] += 60
    ranks = [
        replace(clean, rank=rank, step_peaks=tuple(row.tolist())) for rank, row in enumerate(peaks)
    ]
    whole = [PeerStepPeaks(ranks).is_chance(own, 20) for own in ranks]
    monkeypatch.setattr(steps_module, "_MOST_CELLS", 1000)
    assert [PeerStepPeaks(ranks).is_chance(own, 20) for own in ranks] == whole
    assert whole == [rank != 3 for rank in range(8)]


USUAL = (900, 1000, 1010, 1005, 1000, 1010, 1000, 1005, 1010, 1000)


@pytest.mark.parametrize(
    ("more", "rises"),
    [
        ((0, 0, 5, 30, 60, 90, 120, 150, 180, 210), True),
        ((0, 0, 32, 3, 8, 83, 139, 120, 204, 295), True),
        ((0, 300, 300, 300, 300, 300, 300, 300, 300, 300), False),
        ((0, 0, 300, 0, 0, 300, 0, 0, 300, 0), False),
        ((0, 200, 210, 220, 230, 240, 250, 260, 270, 280), False),
    ],
)
def test_an_excess_that_rises_to_the_end(more: tuple[int, ...], rises: bool) -> None:
    odd = tuple(usual + excess for usual, excess in zip(USUAL, more, strict=True))
    ranks = [rank_of(rank, 4, [], step_peaks=USUAL if rank else odd) for rank in range(4)]
    assert PeerStepPeaks(ranks).rises(ranks[0]) == rises
    assert not PeerStepPeaks(ranks[:1]).rises(ranks[0])


def test_what_more_of_is_in_use_with_every_step_leaks() -> None:
    """Entries of a cache come and go, some of them never: no one lifetime shows that."""
    held = line(12, "temporaries", 8, 100 * MIB, per_step=20)
    more = replace(held, peak_bytes=1200 * MIB, at_peak_bytes=1200 * MIB)
    usual = [rank_of(rank, 4, [held], step_peaks=(800 * MIB,) * 12) for rank in range(4)]
    rising = tuple((800 + 40 * min(step, 10)) * MIB for step in range(12))
    odd = rank_of(0, 4, [more], step_peaks=rising)
    (told,) = compare([odd, *usual[1:]]).differences
    assert (told.ranks, told.cause, told.bytes) == ((0,), "leak", 400 * MIB)
