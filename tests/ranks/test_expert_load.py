"""Hot experts, from the sizes of all-to-all calls."""

from __future__ import annotations

import pytest

from vramlens.ranks import compare
from vramlens.trace.flight import Collective, FlightGroup, FlightRecord


def flight(rank: int, elements: int, name: str = "all_to_all") -> FlightRecord:
    calls = tuple(
        Collective(
            group="3",
            description="ep",
            seq=seq,
            name=name,
            is_p2p=False,
            state="completed",
            input_sizes=((1000, 8),),
            output_sizes=((elements, 8),),
            dtypes=("BFloat16",),
            created_ns=None,
            started_ns=None,
            completed_ns=None,
            frames=(),
        )
        for seq in range(1, 5)
    )
    groups = {"3": FlightGroup("3", "ep", (0, 1, 2, 3))}
    return FlightRecord(f"rank{rank}", "2.4", None, groups, {}, calls)


@pytest.mark.parametrize(("elements", "times"), [(2100, "2.1"), (1600, "1.6")])
def test_a_hot_expert_is_named(elements: int, times: str) -> None:
    flights = {rank: flight(rank, elements if rank == 2 else 1000) for rank in range(4)}
    notes = compare((), flights).notes
    assert any(note.startswith(f"rank 2 receives {times} times") for note in notes)
    assert compare((), flights).collectives == ()  # uneven splits are no mismatch


@pytest.mark.parametrize(("elements", "name"), [(1200, "all_to_all"), (4000, "all_gather_x")])
def test_even_loads_and_other_calls_are_no_news(elements: int, name: str) -> None:
    flights = {rank: flight(rank, elements if rank == 2 else 1000, name) for rank in range(4)}
    assert not any("receives" in note for note in compare((), flights).notes)
