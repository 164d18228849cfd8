"""Who failed first: from recordings, flight records and error files, on clocks that may be hours
apart.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from support.recordings import DATA, data_of, read
from support.vram_files import vram
from vramlens.analyses.finding import Place
from vramlens.fleet import compare_files
from vramlens.ranks import RankSummary, compare, summarise
from vramlens.ranks.rank_failures import failure_order
from vramlens.ranks.rank_summary import RankFailure
from vramlens.read.flight_record import read_flight_record
from vramlens.trace.flight import FlightRecord
from vramlens.trace.rank_error import RankError

FLIGHT = DATA / "ranks/ddp"
HOUR_US = 3_600_000_000
OOM = RankFailure(1_700_000_000_000_000, 3, 1 << 30, Place("train.py", 10, "step"), True)


@pytest.fixture(scope="module")
def clean() -> RankSummary:
    return summarise(read(data_of("recordings/gpt_annotated")), 0)


def flights(ahead_us: int = 0) -> dict[int, FlightRecord]:
    found = {rank: read_flight_record(FLIGHT / f"ddp.rank{rank}.nccl.pickle.xz") for rank in (0, 1)}
    moved = tuple(
        replace(
            one,
            completed_ns=None if one.completed_ns is None else one.completed_ns + ahead_us * 1000,
        )
        for one in found[1].collectives
    )
    source = found[1]
    found[1] = FlightRecord(
        source.source, source.version, None, source.groups, source.last_completed, moved
    )
    return found


def ranks(
    clean: RankSummary, hosts: tuple[str | None, str | None], second_after_us: int
) -> list[RankSummary]:
    later = replace(OOM, time_us=OOM.time_us + second_after_us)
    return [
        replace(clean, rank=0, host=hosts[0], failure=OOM),
        replace(clean, rank=1, host=hosts[1], failure=later),
    ]


def test_one_machine(clean: RankSummary) -> None:
    found = failure_order(ranks(clean, ("a", "a"), -2_000_000), {})
    assert [(one.rank, one.after_s) for one in found.failed] == [(1, 0.0), (0, 2.0)]
    assert found.clock == "all times from one machine's clock"


@pytest.mark.parametrize("hours", [-5, 0, 7])
def test_clocks_hours_apart_are_aligned_by_collectives(clean: RankSummary, hours: int) -> None:
    # Rank 1 failed three seconds later; its clock is hours off.
    found = failure_order(
        ranks(clean, ("a", "b"), 3_000_000 + hours * HOUR_US), flights(hours * HOUR_US)
    )
    assert [one.rank for one in found.failed] == [0, 1]
    assert found.failed[1].after_s == pytest.approx(3.0, abs=0.01)
    assert "aligned by collectives" in found.clock


def test_clocks_that_nothing_aligns_are_told(clean: RankSummary) -> None:
    found = failure_order(ranks(clean, ("a", "b"), -5 * HOUR_US), {})
    assert [one.after_s for one in found.failed] == [None, None]
    assert "the order may be different" in found.clock


def test_who_says_that_another_is_gone_was_not_the_first(clean: RankSummary) -> None:
    errors = {
        0: RankError(
            "e0", "torch.distributed.DistBackendError: NCCL watchdog timed out", 100, (), True
        ),
        1: RankError("e1", "ValueError: bad batch", 101, (), False),
    }
    found = failure_order([], {}, errors)
    assert [(one.rank, one.follows) for one in found.failed] == [(1, False), (0, True)]


def error_file(path: Path, message: str, time: int) -> Path:
    stack = (
        'Traceback (most recent call last):\n  File "train/job.py", line 33, in step\n    load()\n'
        '  File "/env/site-packages/torch/x.py", line 5, in inner\nValueError: bad\n'
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    inner = {"message": message, "extraInfo": {"py_callstack": stack, "timestamp": str(time)}}
    path.write_text(json.dumps({"message": inner}))
    return path


def test_error_files_of_a_folder(tmp_path: Path) -> None:
    error_file(tmp_path / "none_x/attempt_0/2/error.json", "ValueError: bad batch", 1_700_000_000)
    error_file(
        tmp_path / "error_rank_0.json", "RuntimeError: Connection closed by peer", 1_700_000_009
    )
    shutil.copy(FLIGHT / "ddp.rank1.nccl.pickle.xz", tmp_path / "nccl_rank1.pickle.xz")
    found = compare_files([tmp_path])
    first, second = found.failures.failed
    assert (first.rank, str(first.place), first.after_s) == (2, "train/job.py:33 in step", 0.0)
    assert (second.rank, second.follows, second.after_s) == (0, True, 9.0)
    assert "whole seconds" in found.failures.clock


def test_an_error_file_beside_the_recording_of_the_same_rank(
    tmp_path: Path, clean: RankSummary
) -> None:
    error = RankError("e", "torch.OutOfMemoryError: CUDA out of memory", 1_700_000_001, (), False)
    found = compare([replace(clean, failure=OOM), replace(clean, rank=1)], errors={0: error})
    (one,) = found.failures.failed
    assert one.failure is OOM
    assert one.error is error


def test_ranks_that_the_watchdog_ended_are_named_as_missing(tmp_path: Path) -> None:
    data = data_of("recordings/oom_leak")
    vram(tmp_path / "rank00001.vram", data, {"rank": 1, "world_size": 4, "trigger": "oom"})
    found = compare_files([tmp_path])
    assert found.missing == (0, 2, 3)
    assert [one.rank for one in found.failures.failed] == [1]


@pytest.mark.parametrize(
    "text", ['{"message": 3, "extraInfo": 0}', '{"message": {"message": [1], "extraInfo": {}}}']
)
def test_what_is_no_error_file_costs_nothing_else(tmp_path: Path, text: str) -> None:
    (tmp_path / "error_rank0.json").write_text(text)
    shutil.copy(FLIGHT / "ddp.rank1.nccl.pickle.xz", tmp_path / "nccl_rank1.pickle.xz")
    found = compare_files([tmp_path])
    assert sorted(found.flights) == [1]
    assert "not a torchrun error file" in " ".join(found.notes)


def test_who_was_ended_by_sigterm_is_a_victim(clean: RankSummary) -> None:
    ranks = [
        replace(clean, rank=0, ended=("sigterm", 1_700_000_009_000_000)),
        replace(clean, rank=1, ended=("error", 1_700_000_007_000_000)),
        replace(
            clean,
            rank=2,
            ended=("sigterm", 1_700_000_008_000_000),
            failure=replace(OOM, died=False),
        ),
        replace(clean, rank=3, ended=("error", 1_700_000_007_500_000)),
    ]
    found = compare(ranks)
    assert [(one.rank, one.after_s) for one in found.failures.failed] == [(1, 0.0), (3, 0.5)]
    assert "whole seconds" not in found.failures.clock
    assert found.failures.victims == (0, 2)
    assert found.notes == (
        "ranks 0 and 2 were ended by SIGTERM and did not fail: victims of rank 1",
    )
    # Out of memory comes first where it came first; its recording may have been written by SIGTERM.
    ranks[2] = replace(ranks[2], failure=OOM)
    assert [one.rank for one in compare(ranks).failures.failed] == [2, 1, 3]
    # An error file says more than the recording.
    error = RankError(
        "e", "torch.distributed.DistBackendError: NCCL watchdog timed out", 1_699_999_999, (), True
    )
    assert [one.rank for one in failure_order(ranks, {}, {1: error}).failed] == [2, 3, 1]


@pytest.mark.parametrize(
    ("ended", "missing", "note"),
    [
        ((("sigterm", 5), ("exit", 3)), (), "rank 0 was ended by SIGTERM; rank 1 ended without it, so the first failure is in"),
        ((("sigterm", 5), ("sigterm", 6)), (2,), "; the first failure is likely in the output of rank 2, whose files are missing"),
        ((("sigterm", 5), ("sigterm", 6)), (), "ranks 0-1 were ended by SIGTERM, which is every rank here: the job was"),
        ((None, ("exit", 6)), (), ""),
    ],
)  # fmt: skip
def test_victims_without_a_culprit(
    clean: RankSummary,
    ended: tuple[tuple[str, int] | None, ...],
    missing: tuple[int, ...],
    note: str,
) -> None:
    found = compare(
        [replace(clean, rank=rank, ended=each) for rank, each in enumerate(ended)], missing=missing
    )
    assert found.failures.failed == ()
    assert note in " ".join(found.notes)
    assert bool(note) == bool(found.notes)


def test_a_recording_says_why_it_was_written(tmp_path: Path) -> None:
    data = data_of("recordings/gpt_annotated")
    for rank, trigger in enumerate(("sigterm", "error")):
        vram(
            tmp_path / f"{rank}.vram",
            data,
            {"rank": rank, "world_size": 2, "trigger": trigger, "written_us": 50 - rank},
        )
    found = compare_files([tmp_path])
    assert [one.ended for one in found.ranks] == [("sigterm", 50), ("error", 49)]
    assert [one.rank for one in found.failures.failed] == [1]
    assert found.failures.victims == (0,)


def waiting(clean: RankSummary) -> tuple[list[RankSummary], dict[int, FlightRecord]]:
    """Rank 0 waits in a collective that rank 1 never called."""
    found = flights()
    *completed, last = found[0].collectives
    waits = replace(last, state="started", completed_ns=None)
    calls = {0: (*completed, waits), 1: found[1].collectives[:-1]}
    records = {rank: replace(found[rank], collectives=calls[rank]) for rank in (0, 1)}
    return [replace(clean, rank=rank) for rank in (0, 1)], records


def test_a_call_is_missing_because_its_rank_failed(clean: RankSummary) -> None:
    ranks, records = waiting(clean)
    hanging = compare(ranks, records)
    assert [(one.cause, one.ranks) for one in hanging.differences] == [("desync", (1,))]
    died = compare([ranks[0], replace(ranks[1], failure=OOM)], records)
    assert [one.cause for one in died.differences if one.cause == "desync"] == []
    assert any(note.endswith("for rank 1, which had failed") for note in died.notes)
    assert len(died.collectives) == 2  # who was in which call is told as before


def test_who_only_says_that_another_is_gone_explains_no_missing_call(clean: RankSummary) -> None:
    ranks, records = waiting(clean)
    error = RankError("error.json", "NCCL watchdog: remote process exited", None, (), follows=True)
    told = compare(ranks, records, errors={1: error})
    assert [one.cause for one in told.differences] == ["desync"]
