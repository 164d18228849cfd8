"""Blame: a line that is named holds the bytes, and what ranks share is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.planted_ranks import base_of, usual
from vramlens.analyses.finding import Place
from vramlens.ground.verdict import Verdict
from vramlens.ranks import RankSummary, compare
from vramlens.ranks.hints import Hint
from vramlens.ranks.rank_summary import LineUse, RankGrowth
from vramlens.units import MIB

BASE = base_of("ranks/leak_rank1/leak_rank1.rank0.pickle.xz")
TINY = Place("train/multi.py", 80, "log")


def job(world: int = 4) -> list[RankSummary]:
    alike = usual(BASE, "leak")
    return [replace(alike[rank % len(alike)], rank=rank, world_size=world) for rank in range(world)]


def tiny_line(bytes_: int = 512) -> LineUse:
    return LineUse(TINY, Hint(0), "other", "forward", bytes_, bytes_, 1, bytes_, 1, 1, False)


def overlapping(rank: RankSummary) -> tuple[RankSummary, int]:
    """A rank whose peak is higher because one line's bytes coincide with it, and by how much;
    with a tiny line, too.
    """
    largest = max(rank.lines, key=lambda line: line.peak_bytes - line.at_peak_bytes)
    more = largest.peak_bytes - largest.at_peak_bytes
    lines = [
        replace(line, at_peak_bytes=line.at_peak_bytes + more) if line is largest else line
        for line in rank.lines
    ]
    changed = replace(
        rank,
        peak_requested_bytes=rank.peak_requested_bytes + more,
        peak_allocated_bytes=rank.peak_allocated_bytes + more,
        lines=(*lines, tiny_line()),
    )
    return changed, more


@pytest.mark.parametrize("world", [2, 4, 16])
def test_a_tiny_line_is_not_blamed_for_what_only_falls_together(world: int) -> None:
    ranks = job(world)
    ranks[1], more = overlapping(ranks[1])
    assert more > 8 * MIB
    for difference in compare(ranks).differences:
        assert difference.cause in ("overlap", "unknown")
        assert difference.place != TINY
        assert difference.verdict != "proven"


@pytest.mark.parametrize("world", [2, 4, 16])
def test_a_line_that_no_peer_has_and_that_holds_the_bytes_is_blamed(world: int) -> None:
    ranks = job(world)
    more = ranks[1].peak_requested_bytes // 2
    line = tiny_line(more)
    ranks[1] = replace(
        ranks[1],
        peak_requested_bytes=ranks[1].peak_requested_bytes + more,
        lines=(*ranks[1].lines, line),
    )
    differences = compare(ranks).differences
    assert [(one.cause, one.place) for one in differences] == [("rank_only", TINY)]
    assert differences[0].bytes <= line.at_peak_bytes + 0.05 * more


def growth(bytes_per_step: int) -> RankGrowth:
    return RankGrowth(Verdict.PROVEN, TINY, bytes_per_step, bytes_per_step * 20, 20, "drop it")


def test_a_leak_that_all_ranks_share_is_told() -> None:
    ranks = [replace(rank, leaks=(growth(24 * MIB),)) for rank in job(4)]
    comparison = compare(ranks)
    assert comparison.differences == ()
    assert [(finding.id, finding.place, finding.bytes) for finding in comparison.findings] == [
        ("leak", TINY, 480 * MIB)
    ]


@pytest.mark.parametrize(
    ("at_peak", "most", "leaked"),
    [
        pytest.param(6, 7, 6, id="the first and the last step leak, too"),
        pytest.param(20, 20, 7, id="the line also holds what passes"),
        pytest.param(3, 7, 3, id="the peak came before the end"),
        pytest.param(1, 7, 7, id="most of it came after the peak"),
        pytest.param(0, 0, 5, id="it is told at a caller of its lines"),
    ],
)
def test_a_leak_has_the_bytes_that_its_line_holds(at_peak: int, most: int, leaked: int) -> None:
    """Of seven steps five are judged; each leaks 36 MiB."""
    size = 36 * MIB
    leak = replace(growth(size), bytes=5 * size, steps=5)
    line = replace(tiny_line(most * size), at_peak_bytes=at_peak * size)
    ranks = [
        replace(rank, leaks=(leak,), lines=(*rank.lines, line), step_peaks=(1,) * 7)
        for rank in job(4)
    ]
    (finding,) = compare(ranks).findings
    assert (finding.place, finding.bytes) == (TINY, leaked * size)
    alone = [ranks[0], *(replace(rank, leaks=(), lines=rank.lines[:-1]) for rank in ranks[1:])]
    (difference,) = compare(alone).differences
    assert (difference.ranks, difference.place, difference.bytes) == ((0,), TINY, leaked * size)


def test_growth_of_few_bytes_is_nothing_to_act_on() -> None:
    ranks = [replace(rank, leaks=(growth(76),)) for rank in job(4)]
    assert compare(ranks).findings == ()


def test_ranks_of_one_host_are_told_as_that_host() -> None:
    ranks = [replace(rank, host=f"node{rank.rank // 4}") for rank in job(16)]
    ranks = [
        replace(
            rank,
            leaks=(growth(24 * MIB),),
            peak_requested_bytes=rank.peak_requested_bytes + 480 * MIB,
        )
        if rank.host == "node1"
        else rank
        for rank in ranks
    ]
    (leak,) = [one for one in compare(ranks).differences if one.cause == "leak"]
    assert leak.ranks == (4, 5, 6, 7)
    assert "host node1" in leak.evidence[0]


@pytest.mark.parametrize("world", [2, 4, 16])
def test_what_falls_together_is_a_cause_of_its_own(world: int) -> None:
    """All ranks are equal, but for a line that is at its highest when the peak comes, and 512
    bytes elsewhere.
    """
    same = job(1)[0]
    ranks = [replace(same, rank=rank, world_size=world) for rank in range(world)]
    ranks[1], more = overlapping(ranks[1])
    (difference,) = compare(ranks).differences
    assert (difference.ranks, difference.cause, difference.bytes) == ((1,), "overlap", more)
    assert difference.place not in (None, TINY)


def test_growth_that_may_be_a_leak_is_told_where_all_ranks_share_it() -> None:
    possible = replace(growth(48 * MIB), verdict=Verdict.POSSIBLE)
    ranks = [replace(rank, leaks=(possible,)) for rank in job(4)]
    (finding,) = compare(ranks).findings
    assert finding.verdict == Verdict.POSSIBLE
    assert finding.title.startswith("All 4 ranks have the same growth, maybe a leak")
    assert not compare(ranks).has_trouble
    assert compare([*ranks[:3], replace(ranks[3], leaks=())]).findings == ()


def test_other_allocator_settings_are_told_as_such() -> None:
    ranks = [replace(rank, alloc_conf="") for rank in job(4)]
    more = replace(
        ranks[2],
        alloc_conf="roundup_power2_divisions:1",
        peak_reserved_bytes=ranks[2].peak_reserved_bytes * 13 // 10 + 64 * MIB,
    )
    (difference,) = compare([*ranks[:2], more, ranks[3]]).differences
    assert (difference.ranks, difference.cause) == ((2,), "allocator_settings")
    assert difference.evidence[0] == (
        "allocator settings: roundup_power2_divisions:1; its peers: PyTorch's own"
    )
    alike = [replace(rank, alloc_conf=more.alloc_conf) for rank in (*ranks[:2], more, ranks[3])]
    assert {found.cause for found in compare(alike).differences} == {"allocator"}
