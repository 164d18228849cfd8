"""Files that are not as they should be: clear words, and the rest done."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

from support.recordings import data_of, read
from support.vram_files import vram
from vramlens.fleet import compare_files
from vramlens.ranks import compare, summarise

CLEAN, LEAK = "ranks/leak_rank1/leak_rank1.rank0", "ranks/leak_rank1/leak_rank1.rank1"


def write(folder: Path, *names: str) -> None:
    for rank, name in enumerate(names):
        (folder / f"rank{rank}.pickle").write_bytes(data_of(name))


def test_a_truncated_rank_is_told_and_the_others_are_compared(tmp_path: Path) -> None:
    write(tmp_path, CLEAN, LEAK, CLEAN, CLEAN)
    data = data_of(CLEAN)
    (tmp_path / "rank3.pickle").write_bytes(data[: len(data) * 2 // 3])
    found = compare_files([tmp_path])
    assert [(one.cause, one.ranks) for one in found.differences] == [("leak", (1,))]
    assert "the recording of rank 3 ends early: its numbers are lower bounds" in found.notes
    assert any("rank 3 recorded a different number of steps" in note for note in found.notes)


def test_numbers_that_no_job_has_cost_nothing(tmp_path: Path) -> None:
    """Who counts up to such a number of ranks, or of collectives, never comes to an end."""
    huge = (1 << 50) - 1
    vram(tmp_path / "rank1.vram", data_of(CLEAN), {"rank": huge, "world_size": huge})
    calls = [
        {"profiling_name": "nccl:all_reduce", "collective_seq_id": seq, "state": "completed"}
        for seq in (0, huge)
    ]
    groups = {"0": {"ranks": [0, 1, huge]}}
    for rank in range(2):
        record = {"version": "2", "pg_config": groups, "entries": calls}
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(record))
    found = compare_files([tmp_path])
    assert [one.rank for one in found.ranks] == [1]
    assert found.missing == ()
    assert found.collectives == ()


def test_different_step_counts_are_told_and_no_difference() -> None:
    one = summarise(read(data_of(CLEAN)), 0)
    ranks = [replace(one, rank=rank) for rank in range(4)]
    ranks[2] = replace(ranks[2], step_peaks=one.step_peaks[:3])
    found = compare(ranks)
    assert found.differences == ()
    assert found.notes == (
        "rank 2 recorded a different number of steps than most ranks, 8 (3 to 8): only the steps that all ranks have are compared",
    )


def test_an_empty_and_a_hostile_recording_cost_their_ranks(tmp_path: Path) -> None:
    write(tmp_path, CLEAN, LEAK, CLEAN)
    (tmp_path / "rank3.pickle").write_bytes(b"")
    (tmp_path / "rank4.pickle").write_bytes(b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R.")
    (tmp_path / "rank5.pickle").write_bytes(pickle.dumps({"segments": 5, "device_traces": "x"}))
    found = compare_files([tmp_path])
    assert [(one.cause, one.ranks) for one in found.differences] == [("leak", (1,))]
    assert found.missing == (3, 4)
    assert "the recording of rank 5 contains no GPU memory" in found.notes
    assert sum("left out" in note or note.startswith("rank 4") for note in found.notes) == 2
