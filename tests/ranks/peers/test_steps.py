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
from vramlens.ranks import RankSummary, summarise
from vramlens.ranks.peers import steps_against_peers as steps_module
from vramlens.ranks.peers.steps_against_peers import PeerStepPeaks


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
    if (
        max(
            float(np.median(np.ptp(theirs, axis=1) / theirs.max(axis=1))), np.ptp(mine) / mine.max()
        )
        < 0.02
    ):
        return False
    if count < 4:
        return True
    if mine.max() >= 1.25 * theirs.max():
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
