"""Hangs within a group: the ranks at fault are told in their own group, and the others wait for
them in theirs.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.recordings import DATA
from vramlens.ranks import RankSummary, compare
from vramlens.ranks.flights.collectives import collective_problems
from vramlens.read.flight_record import read_flight_record
from vramlens.trace.flight import Collective, FlightGroup, FlightRecord, Frame

RINGS = {"1": (0, 1, 2, 3), "2": (4, 5, 6, 7)}
WORLD = tuple(range(8))


def call(
    group: str, seq: int, line: int, *, state: str = "completed", is_p2p: bool = False
) -> Collective:
    return Collective(
        group=group,
        description={"0": "default_pg"}.get(group, "ring"),
        seq=seq,
        name="send" if is_p2p else "all_reduce",
        is_p2p=is_p2p,
        state=state,
        input_sizes=((64,),),
        output_sizes=((64,),),
        dtypes=("Float",),
        created_ns=None,
        started_ns=None,
        completed_ns=None,
        frames=(Frame("train/ring.py", line, "step"),),
    )


def record(rank: int, *last: Collective) -> FlightRecord:
    """A rank that called what all do, and these at last."""
    ring = "1" if rank < 4 else "2"
    calls = (call("0", 1, 10), call(ring, 1, 20), *last)
    groups = {
        "0": FlightGroup("0", "default_pg", WORLD),
        ring: FlightGroup(ring, "ring", RINGS[ring]),
    }
    return FlightRecord(f"rank{rank}", "2.4", None, groups, {}, calls)


def job(*, sending: bool = True) -> dict[int, FlightRecord]:
    """Rank 5 calls a collective in its ring that the others do not; these wait to send to it, or
    call nothing; the other ring waits for all.
    """
    flights = {}
    for rank in WORLD:
        if rank < 4:
            last = [call("0", 2, 11, state="started")]
        elif rank == 5:
            last = [call("2", 2, 30, state="started")]
        else:
            last = [call("2", 1, 40, state="started", is_p2p=True)] * sending
        flights[rank] = record(rank, *last)
    return flights


def test_who_calls_what_its_group_does_not_is_at_fault() -> None:
    answer = compare((), job())
    (told,) = answer.differences
    assert (told.ranks, told.cause) == ((5,), "desync")
    assert told.title == (
        "rank 5 called a collective that the rest of the group did not call: call 2 of process group"
        " 2 (ring)"
    )
    assert str(told.place) == "train/ring.py:30 in step"
    assert answer.notes[0] == (
        "ranks 0-3 wait in call 2 of process group 0 for ranks 4-7, which wait in process group 2"
        " (ring)"
    )


def test_ranks_that_wait_for_nothing_are_those_that_did_not_come() -> None:
    (told,) = compare((), job(sending=False)).differences
    assert told.ranks == (4, 6, 7)


def test_one_rank_that_does_not_come_is_at_fault() -> None:
    """Its ring waits for it, and the other ring for all of these."""
    flights = {
        rank: record(rank, *[call("0", 2, 11, state="started")] * (rank < 4),
                     *[call("2", 2, 21, state="started")] * (rank in (4, 5, 7)))
        for rank in WORLD
    }  # fmt: skip
    (told,) = compare((), flights).differences
    assert (told.ranks, told.cause) == ((6,), "desync")


@pytest.mark.parametrize("order", ["alike", "crossed"])
def test_groups_that_wait_for_each_other_are_both_told(order: str) -> None:
    """Half of the ranks call the groups' collectives in another order."""
    flights = {rank: record(rank, call("0", 2, 11, state="started")) for rank in WORLD}
    if order == "crossed":
        for rank in (6, 7):
            flights[rank] = record(rank, call("2", 2, 21, state="started"))
    answer = compare((), flights)
    groups = {row.group for row in collective_problems(flights) if row.suspected}
    assert groups == ({"0", "2 (ring)"} if order == "crossed" else set())
    assert len(answer.differences) == (2 if order == "crossed" else 1)


def crossing(calls: dict[int, str], groups: dict[str, tuple[int, ...]]) -> dict[int, FlightRecord]:
    """Ranks of groups that cross each other: each waits in one of its groups, or in none."""
    flights = {}
    for rank in sorted({rank for members in groups.values() for rank in members}):
        own = {name: FlightGroup(name, "mesh", of) for name, of in groups.items() if rank in of}
        done = [replace(call(name, 1, 20), description="mesh") for name in own]
        waits = [call(calls[rank], 2, 21, state="started")] if rank in calls else []
        mine = (*done, *(replace(last, description="mesh") for last in waits))
        flights[rank] = FlightRecord(f"rank{rank}", "2.4", None, own, {}, mine)
    return flights


MESH = {"tp0": (0, 1, 2, 3), "tp1": (4, 5, 6, 7), "dp0": (0, 4), "dp1": (1, 5), "dp2": (2, 6), "dp3": (3, 7)}  # fmt: skip


def test_a_rank_that_hangs_is_told_though_all_its_groups_wait() -> None:
    """Its tensor-parallel peers wait for it, and the other replica's ranks for these."""
    calls = {0: "dp0", 1: "dp1", 2: "dp2", 3: "dp3", 4: "tp1", 6: "tp1", 7: "tp1"}
    answer = compare((), crossing(calls, MESH))
    assert {told.ranks for told in answer.differences} == {(5,)}
    waiting = [note for note in answer.notes if "which wait" in note]
    assert waiting == [
        f"rank {rank} waits in call 2 of process group dp{rank} (mesh) for rank {4 + rank}, which"
        " waits in process group tp1 (mesh)"
        for rank in (0, 2, 3)
    ]


def test_a_rank_that_is_missing_in_two_groups_is_told() -> None:
    groups = {"A": (0, 1, 3), "B": (1, 2, 4)}
    answer = compare((), crossing({0: "A", 3: "A", 2: "B", 4: "B"}, groups))
    assert {told.ranks for told in answer.differences} == {(1,)}
    assert not any("which wait" in note for note in answer.notes)


def test_a_circle_of_groups_that_wait_for_each_other_is_told() -> None:
    groups = {"A": (0, 1), "B": (1, 2), "C": (2, 0)}
    answer = compare((), crossing({0: "A", 1: "B", 2: "C"}, groups))
    assert {rank for told in answer.differences for rank in told.ranks} == {0, 1, 2}
    assert not any("which wait" in note for note in answer.notes)


def test_two_groups_that_wait_for_each_other_are_said_to() -> None:
    """A real hang (``given_up``): one rank trains on, the other one evaluates."""
    records = {
        rank: read_flight_record(DATA / f"ranks/given_up/hang.rank{rank}.nccl.pickle.xz")
        for rank in (0, 1)
    }
    answer = compare((), flights=records)
    assert [(each.ranks, each.cause) for each in answer.differences] == [
        ((1,), "desync"),
        ((0,), "desync"),
    ]
    assert answer.differences[0].title.endswith(
        "that rank 0 is waiting in: call 94 of process group 0"
    )
    assert [note for note in answer.notes if note.startswith("process groups 0 and 1 wait")] != []


def test_a_rank_whose_program_came_to_its_end_is_said_to() -> None:
    """It stopped early and left no record; the others wait for it."""
    flights = {
        rank: FlightRecord(
            f"rank{rank}",
            "2.4",
            None,
            {"0": FlightGroup("0", "default_pg", (0, 1, 2))},
            {},
            (call("0", 1, 10), call("0", 2, 11, state="started")),
        )
        for rank in (0, 2)
    }
    ranks = [
        RankSummary(
            rank, f"rank{rank}.vram", world_size=3, ended=("exit", 1) if rank == 1 else None
        )
        for rank in range(3)
    ]
    (told,) = compare(ranks, flights).differences
    assert told.title == (
        "rank 1 came to the end of its program, and the others are waiting: call 2 of process group 0"
    )
    assert "decide together when to stop" in told.fix


def test_of_what_is_queued_behind_a_call_that_nobody_completed_nothing_follows() -> None:
    """Two ranks were recorded half a second apart: one has queued more calls by then."""
    queued = [call("0", number, 11, state="scheduled") for number in range(2, 6)]
    flights = {rank: record(rank, *queued[: 1 + rank % 2 * 3]) for rank in WORLD}
    rows = collective_problems(flights)
    assert {row.problem for row in rows} == {"not_completed"}
    assert {row.seq for row in rows} == {2}
    assert not any(row.suspected for row in rows)
