"""Reserved memory that is not used: other settings pad what is requested."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.summaries import MODEL, line, named_causes, trainers, with_lines
from vramlens.analyses.finding import Place
from vramlens.ranks import RankSummary, compare
from vramlens.ranks.rank_summary import FrameUse
from vramlens.units import MIB

PADDED = "roundup_power2_divisions:2"


def padded(rank: RankSummary, share: float) -> RankSummary:
    """It requests the same and is handed out more."""
    taken = int(rank.peak_requested_bytes * (1 + share))
    return replace(rank, peak_allocated_bytes=taken, peak_reserved_bytes=taken, alloc_conf=PADDED)


@pytest.mark.parametrize("odd", [(2,), (0, 1, 2, 3), (4, 5, 6, 7)])
def test_padding_is_told_as_the_settings_that_pad(odd: tuple[int, ...]) -> None:
    alike = [replace(rank, alloc_conf="") for rank in trainers(8)]
    ranks = [padded(rank, 0.12) if rank.rank in odd else rank for rank in alike]
    answer = compare(ranks)
    assert named_causes(answer) == [(odd, "allocator_settings")]
    (told,) = answer.differences
    assert told.bytes == ranks[odd[0]].peak_reserved_bytes - alike[0].peak_reserved_bytes
    assert f"allocator settings: {PADDED}; its peers: PyTorch's own" in told.evidence[:2]


def test_a_little_padding_is_no_difference() -> None:
    alike = [replace(rank, alloc_conf="") for rank in trainers(4)]
    assert compare([padded(alike[0], 0.08), *alike[1:]]).differences == ()


@pytest.mark.parametrize(
    ("batches", "causes"), [("its own", ["allocator"]), ("all", []), ("none", [])]
)
def test_a_rank_whose_batches_alone_vary_is_told_what_it_caches(
    batches: str, causes: list[str]
) -> None:
    """A seventh of what is reserved is chance, unless there is a reason."""
    ranks = trainers(4)
    peak = ranks[0].peak_reserved_bytes
    varying = tuple(int(peak * share) for share in (0.8, 1.0, 0.9, 0.97, 0.85, 1.0))
    varies = {"its own": (1,), "all": (0, 1, 2, 3), "none": ()}[batches]
    ranks = [replace(rank, step_peaks=varying) if rank.rank in varies else rank for rank in ranks]
    ranks[1] = replace(ranks[1], peak_reserved_bytes=int(1.14 * peak))
    answer = compare(ranks)
    assert named_causes(answer) == [((1,), cause) for cause in causes]
    if causes:
        (told,) = answer.differences
        assert told.evidence[0].startswith("its batches vary from step to step")
        assert told.fix.startswith("pad its batches to a few fixed sizes")


def _settings_notes(ranks: list[RankSummary]) -> list[str]:
    answer = compare(ranks)
    assert answer.differences == ()
    return [note for note in answer.notes if "settings" in note]


def test_other_settings_that_cost_nothing_are_a_note() -> None:
    ranks = [replace(rank, alloc_conf=PADDED * (rank.rank == 2)) for rank in trainers(4)]
    assert _settings_notes(ranks) == [
        f"rank 2 has other allocator settings: {PADDED}; the others: PyTorch's own"
    ]
    assert _settings_notes([replace(rank, alloc_conf=None) for rank in ranks]) == []
    halves = [replace(rank, alloc_conf=PADDED * (rank.rank < 2)) for rank in ranks]
    assert _settings_notes(halves) == []


@pytest.mark.parametrize(
    ("odd_groups", "named"), [((2,), True), ((1, 3, 6), False), ((1, 2, 5, 7), False)]
)
def test_what_many_groups_cache_by_chance_is_no_difference(
    odd_groups: tuple[int, ...], named: bool
) -> None:
    """Tensor-parallel groups of four, each with lengths of its own."""
    ranks = []
    for rank in trainers(32):
        group = rank.rank // 4
        more = 1.3 if group in odd_groups else 1.0
        reserved = int(rank.peak_reserved_bytes * more)
        groups = (("tp", ((4 * group, 4, 1),)),)
        ranks.append(replace(rank, peak_reserved_bytes=reserved, groups=groups))
    odd = tuple(rank.rank for rank in ranks if rank.rank // 4 in odd_groups)
    assert named_causes(compare(ranks)) == [(odd, "allocator")] * named


def test_a_few_ranks_that_reserve_more_are_told_whatever_they_have_in_common() -> None:
    ranks = trainers(32)
    for odd in (3, 9):
        more = int(1.3 * ranks[odd].peak_reserved_bytes)
        ranks[odd] = replace(ranks[odd], peak_reserved_bytes=more)
    assert named_causes(compare(ranks)) == [((3, 9), "allocator")]


@pytest.mark.parametrize(("sizes", "told_mib"), [(4, 1000), (1, 500)])
def test_a_line_whose_requests_grow_costs_what_is_reserved_for_them(
    sizes: int, told_mib: int
) -> None:
    """What it freed does not fit the next request; of one size it would be used again."""
    ranks = trainers(4)
    buffer = replace(line(26, "temporaries", 1, 500 * MIB), static=False, per_step=1)
    buffer = replace(buffer, allocations=4, sizes=sizes, total_bytes=4 * buffer.peak_bytes)
    ranks[2] = with_lines(ranks[2], buffer)
    frame = FrameUse(Place(MODEL, 26, "f26"), 4, buffer.total_bytes, 500 * MIB, 1000 * MIB)
    reserved = ranks[2].peak_reserved_bytes + 500 * MIB
    ranks[2] = replace(ranks[2], frames=(frame,), peak_reserved_bytes=reserved)
    (told,) = compare(ranks).differences
    assert (told.ranks, told.cause, told.place) == ((2,), "rank_only", frame.place)
    assert told.bytes == told_mib * MIB
    assert ("does not fit the next" in told.evidence[-1]) == (sizes > 1)


def test_all_ranks_with_the_settings_that_cost_memory_are_named() -> None:
    """Rank 6 has them as well: its shards are smaller, and little of it is padded."""
    ranks = [replace(rank, alloc_conf="") for rank in trainers(8)]
    ranks[4:6] = [padded(rank, 0.2) for rank in ranks[4:6]]
    ranks[6] = padded(ranks[6], 0.05)
    assert named_causes(compare(ranks)) == [((4, 5, 6), "allocator_settings")]


def of_parts(odd: int, scratch: bool) -> list[RankSummary]:
    """Ranks with parts of a graph, each of another size; one reserves more by half, for buffers
    that only it makes, or for its part.
    """
    sizes = (1800, 2000, 2200, 2400, 2600, 2800)
    ranks = [
        with_lines(rank, line(60, "activations", 1, size * MIB, per_step=1))
        for rank, size in zip(trainers(6), sizes, strict=True)
    ]
    reserved = int(1.5 * ranks[odd].peak_reserved_bytes)
    frame = FrameUse(Place("graph/degrees.py", 22, "histogram"), 2, 2000 * MIB, 0, 1500 * MIB)
    frames = (frame,) if scratch else ()
    ranks[odd] = replace(ranks[odd], peak_reserved_bytes=reserved, frames=frames)
    return ranks


@pytest.mark.parametrize("odd", [0, 3])
def test_of_ranks_with_unequal_parts_one_reserves_more_by_chance(odd: int) -> None:
    assert compare(of_parts(odd, scratch=False)).differences == ()
    (told,) = compare(of_parts(odd, scratch=True)).differences
    assert (told.ranks, told.cause) == ((odd,), "allocator")
    assert str(told.place) == "graph/degrees.py:22 in histogram"
