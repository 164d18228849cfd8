"""Which ranks are compared with which: from process groups of recordings and flight records,
else from what they hold.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.recordings import data_of, read
from support.summaries import layers, line, rank_of
from support.vram_files import vram
from vramlens.analyses.finding import Place
from vramlens.api import load
from vramlens.capture import process_group
from vramlens.capture.process_group import rank_spans
from vramlens.fleet.summary_json import summary_from_json, summary_to_json
from vramlens.ranks import RankSummary, compare, summarise
from vramlens.ranks.hints import Hint
from vramlens.ranks.peers.rank_cohorts import cohorts_of
from vramlens.units import MIB


@pytest.fixture(scope="module")
def clean() -> RankSummary:
    return summarise(read(data_of("recordings/gpt_annotated")), 0)


@given(st.sets(st.integers(0, 20_000), max_size=200))
def test_spans_say_the_same_ranks(ranks: set[int]) -> None:
    spans = rank_spans(tuple(ranks))
    assert sorted(
        r for first, count, step in spans for r in range(first, first + count * step, step)
    ) == sorted(ranks)


def test_meshes_are_few_spans() -> None:
    assert rank_spans(range(16_384)) == [[0, 16_384, 1]]
    assert rank_spans(range(5, 16_384, 8)) == [[5, 2048, 8]]


def mesh(clean: RankSummary, **sizes: int) -> list[RankSummary]:
    """Ranks of a mesh, each in one group a dimension, as DeviceMesh makes and calls them."""
    names, found = list(sizes), []
    coordinates = list(product(*(range(size) for size in sizes.values())))
    for rank, own in enumerate(coordinates):
        groups = []
        for axis, name in enumerate(names):
            members = [
                other for other, each in enumerate(coordinates)
                if all(a == b for i, (a, b) in enumerate(zip(each, own, strict=True)) if i != axis)
            ]  # fmt: skip
            groups.append((f"mesh_{name}", tuple(map(tuple, rank_spans(members)))))
        found.append(replace(clean, rank=rank, groups=tuple(groups)))
    return found


@pytest.mark.parametrize(
    ("sizes", "cohorts", "staged"),
    [
        ({"dp": 4}, [(0, 1, 2, 3)], False),
        ({"pp": 2, "dp": 2}, [(0, 1), (2, 3)], True),
        ({"dp": 2, "tp": 2}, [(0, 2), (1, 3)], False),
        ({"pp": 2, "dp": 2, "tp": 2}, [(0, 2), (1, 3), (4, 6), (5, 7)], True),
        ({"dp": 2, "tp": 2, "pp": 2}, [(0, 4), (2, 6), (1, 5), (3, 7)], True),
        ({"dp_replicate": 2, "dp_shard": 2}, [(0, 1, 2, 3)], False),
        ({"dp_shard": 2, "cp": 2, "tp": 1}, [(0, 1, 2, 3)], False),
    ],
)
def test_coordinates_of_a_mesh(
    clean: RankSummary, sizes: dict[str, int], cohorts: list[tuple[int, ...]], staged: bool
) -> None:
    found = cohorts_of(mesh(clean, **sizes), {})
    assert (list(found.members), found.source, found.staged) == (cohorts, "process groups", staged)


def test_a_stage_is_compared_within_itself(clean: RankSummary) -> None:
    ranks = mesh(clean, pp=2, dp=4)
    larger = replace(clean, peak_requested_bytes=clean.peak_requested_bytes * 11 // 10)
    stage = [
        replace(one, peak_requested_bytes=larger.peak_requested_bytes) if one.rank >= 4 else one
        for one in ranks
    ]
    assert compare(stage).differences == ()


def test_tensor_parallel_alone_says_nothing_of_peers(clean: RankSummary) -> None:
    assert cohorts_of(mesh(clean, tp=4), {}).source == "all ranks"


def test_groups_travel_with_the_recording(tmp_path: Path) -> None:
    groups = [
        {"name": "5", "description": "mesh_dp", "ranks": [[1, 2048, 8]]},
        {"name": "6", "description": "mesh_tp", "ranks": [0, 1]},
        {"name": 7, "description": ["x"], "ranks": "all"},
        {
            "name": "8",
            "description": "mesh_cp",
            "ranks": [[0, 10**9, 1], [1, 2], [1, -2, 1], ["a", 1, 1]],
        },
        "nothing",
    ]
    path = vram(tmp_path / "r.vram", data_of("recordings/gpt_annotated"), {"groups": groups})
    trace = load(path)
    assert [(one.description, one.spans) for one in trace.meta.groups] == [
        ("mesh_dp", ((1, 2048, 8),)), ("mesh_tp", ((0, 1, 1), (1, 1, 1))), ("", ()), ("mesh_cp", ()),
    ]  # fmt: skip
    summary = summarise(trace, 1)
    text = summary_to_json(summary)
    assert summary_from_json(text) == summary
    assert len(text) - len(summary_to_json(replace(summary, groups=()))) < 200


def test_what_a_recording_says_of_groups_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [process_group.ProcessGroup("0", "default_pg", "nccl", tuple(range(16_384)))]
    made += [
        process_group.ProcessGroup(str(n), f"mesh_{n}", "nccl", tuple(range(n, 16_384, 128)))
        for n in range(1, 100)
    ]
    scattered = tuple(n * n for n in range(5_000))
    made.append(process_group.ProcessGroup("x", "odd", "nccl", scattered))
    monkeypatch.setattr(process_group, "initialized_group", lambda: object())
    monkeypatch.setattr(process_group, "_groups", lambda _: tuple(made))
    found = process_group.groups_for_meta()
    assert [one["name"] for one in found] == [str(n) for n in range(1, 100)]
    assert len(json.dumps(found)) < 10_000
    monkeypatch.setattr(process_group, "initialized_group", lambda: None)
    assert process_group.groups_for_meta() == []


def test_experts_that_get_more_tokens_are_told_between_cohorts(clean: RankSummary) -> None:
    line = clean.lines[0]
    more = clean.peak_requested_bytes // 3
    hot = replace(
        line, place=Place("moe.py", 7, "forward"), hints=Hint.EXPERTS, category="activations"
    )
    usual = replace(clean, lines=(*clean.lines, replace(hot, peak_bytes=more // 10)))
    busy = replace(
        clean,
        lines=(*clean.lines, replace(hot, peak_bytes=more + more // 10)),
        peak_requested_bytes=clean.peak_requested_bytes + more,
    )
    ranks = [
        replace(busy if one.rank % 4 == 2 else usual, rank=one.rank, groups=one.groups)
        for one in mesh(clean, dp=2, ep=4)
    ]
    (found,) = compare(ranks).differences
    assert (found.ranks, found.cause, str(found.place)) == (
        (2, 6),
        "moe_hot_rank",
        "moe.py:7 in forward",
    )


def copies(groups: Sequence[str], sizes: Sequence[int]) -> list[RankSummary]:
    """Shards of two ranks, each shard in a group; the n-th holds so many MiB beside its parameters."""
    world = 2 * len(sizes)
    ranks = []
    for rank in range(world):
        own = [*layers(2, 2)[:2], line(12, "activations", 1, sizes[rank // 2] * MIB, per_step=2)]
        spans = (((rank // 2 * 2, 2, 1),), ((rank % 2, len(sizes), 2),))
        summary = rank_of(rank, world, own, recomputed_bytes=0)
        ranks.append(replace(summary, groups=tuple(zip(groups, spans, strict=True))))
    return ranks


def test_shards_that_are_copies_of_each_other_are_compared() -> None:
    """No name says that the second groups hold copies: most hold the same, the last ones more."""
    answer = compare(copies(("shard", "other"), (800, 800, 800, 1100)))
    assert answer.cohorts.members == (tuple(range(8)),)
    assert [told.ranks for told in answer.differences] == [(6, 7)]


@pytest.mark.parametrize(
    ("names", "sizes"),
    [
        (("shard", "pp"), (800, 800, 800, 1100)),
        (("shard", "ep"), (800, 800, 800, 1100)),
        (("shard", "other"), (800, 1100, 950, 1300)),
        (("shard", "other"), (800, 1100)),
    ],
    ids=["stages", "experts", "all differ", "two"],
)
def test_shards_that_may_be_parts_of_a_model_are_not_joined(
    names: Sequence[str], sizes: Sequence[int]
) -> None:
    assert len(cohorts_of(copies(names, sizes), {}).members) == len(sizes)


def test_that_kinds_of_work_hold_more_is_said() -> None:
    answer = compare(copies(("shard", "other"), (800, 1000)))
    assert answer.differences == ()
    assert answer.notes[0] == (
        "the ranks do 2 kinds of work, told by process groups (ranks 0-1; ranks 2-3): one kind may"
        " hold more than another"
    )
    alike = compare(copies(("shard", "other"), (800, 800)))
    assert not any("kinds of work" in note for note in alike.notes)


def test_a_copy_of_the_weights_is_no_other_part_of_the_model() -> None:
    """An average of all weights, on three ranks of nine."""
    average = line(21, "parameters", 2, 150 * MIB, phase="other")
    ranks = [
        rank_of(rank, 9, [*layers(2, 2), *[average] * (rank in (3, 4, 5))], recomputed_bytes=0)
        for rank in range(9)
    ]
    answer = compare(ranks)
    assert [(told.ranks, told.cause, told.bytes) for told in answer.differences] == [
        ((3, 4, 5), "rank_only", 300 * MIB)
    ]


def test_a_pipeline_without_replicas_and_calls_is_one() -> None:
    """An encoder, layers, and a decoder: fewer layers at both ends."""
    ends = {0: line(20, "parameters", 3, 300 * MIB, phase="other"),
            5: line(30, "parameters", 3, 30 * MIB, phase="other")}  # fmt: skip
    counts = (3, 4, 4, 4, 4, 3)

    def stage(rank: int, count: int) -> RankSummary:
        own = [
            line(10, "parameters", count, 100 * MIB, phase="other"),
            line(13, "temporaries", 1, 50 * MIB, per_step=count),
        ]
        return rank_of(rank, 6, [*own, *([ends[rank]] if rank in ends else [])])

    ranks = [stage(rank, count) for rank, count in enumerate(counts)]
    answer = compare(ranks)
    assert answer.cohorts.staged
    assert answer.differences == ()
    without_end = [ranks[0], *(replace(ranks[1], rank=rank) for rank in range(1, 6))]
    assert not compare(without_end).cohorts.staged


def test_ranks_whose_steps_are_not_known_are_compared_as_one() -> None:
    """What a line is for is known by the steps; two of four ranks have none."""
    named = [rank_of(rank, 4, layers(2, 2)) for rank in range(4)]
    ranks = [
        replace(
            rank,
            step_peaks=(),
            lines=tuple(replace(use, category="parameters") for use in rank.lines),
        )
        if rank.rank in (1, 2)
        else rank
        for rank in named
    ]
    assert cohorts_of(ranks, {}).members == ((0, 1, 2, 3),)
