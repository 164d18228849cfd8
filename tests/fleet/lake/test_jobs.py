"""Which job is which in a lake: two jobs of one name, attempts, and exports that were stopped."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from support.lake_jobs import START_US, write_job
from vramlens.cli.main import main
from vramlens.errors import UsageError
from vramlens.fleet import Lake, compare_files, export_lake, find_ranks
from vramlens.fleet.files import find_attempts
from vramlens.fleet.lake.staging import RankSources, stage_rank

pytest.importorskip("duckdb")


def test_two_jobs_of_one_name_are_two_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = f"{tmp_path}/lake/"
    monday = write_job(tmp_path / "monday" / "r1", 2)
    tuesday = write_job(tmp_path / "tuesday" / "r1", 2, start_us=START_US + 10**11)
    assert main(["export", str(monday), "--to", root]) == 0
    capsys.readouterr()
    assert main(["export", str(tuesday), "--to", root]) == 0
    assert "run r1 is another job's: this one is r1-2" in capsys.readouterr().out
    assert main(["export", str(monday), "--to", root]) == 0  # the same again
    assert main(["export", str(tuesday), "--to", root]) == 0
    lake = Lake(root)
    assert list(lake.runs) == ["r1", "r1-2"]
    assert lake.sql("SELECT run, count(*) FROM ranks GROUP BY 1 ORDER BY 1")[1] == [
        ("r1", 2),
        ("r1-2", 2),
    ]
    with pytest.raises(UsageError, match="another job's"):
        export_lake([tuesday], root, "r1")


def test_folders_without_facts_are_told_apart_by_their_place(tmp_path: Path) -> None:
    from support.recordings import DATA

    copy = tmp_path / "copy"
    shutil.copytree(DATA / "ranks/leak_rank1", copy)
    root = str(tmp_path / "lake")
    assert export_lake([DATA / "ranks/leak_rank1"], root, "r", is_given=False).run == "r"
    assert export_lake([copy], root, "r", is_given=False).run == "r-2"
    assert export_lake([copy], root, "r", is_given=False).events == 0


def test_a_restart_with_fewer_ranks_is_another_attempt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = write_job(tmp_path / "job", 4, trigger="sigterm", attempt=0)
    write_job(job, 2, start_us=START_US + 10**9, attempt=1)
    attempts = find_attempts([job])
    assert [[file.rank for file in files.ranks] for files in attempts] == [[0, 1, 2, 3], [0, 1]]
    assert [files.attempt for files in attempts] == [0, 1]
    last = compare_files([job])
    assert [rank.rank for rank in last.ranks] == [0, 1]
    assert last.missing == ()
    assert any("started 2 times" in note for note in last.notes)
    assert len(compare_files([job], attempt=0).ranks) == 4

    root = str(tmp_path / "lake")
    export_lake([job], root, "x")
    assert Lake(root).runs == {"x": [0, 1]}
    _, rows = Lake(root).sql("SELECT attempt, count(*) FROM ranks GROUP BY 1 ORDER BY 1")
    assert rows == [(0, 4), (1, 2)]
    assert Lake(root).sql("SELECT attempt, world_size, ranks FROM runs ORDER BY 1")[1] == [
        (0, 4, 4),
        (1, 2, 2),
    ]
    assert len(compare_files([root]).ranks) == 2
    assert len(compare_files([root], attempt=0).ranks) == 4
    assert main(["ranks", root, "--attempt", "7", "--run", "x"]) == 3
    assert "no attempt 7" in capsys.readouterr().err


@pytest.mark.parametrize("world", [4, 3])
def test_attempts_without_a_launchers_count_are_told_by_their_times(
    tmp_path: Path, world: int
) -> None:
    job = write_job(tmp_path / "job", 4, trigger="sigterm", launcher_pid=None)
    again = write_job(tmp_path / "again", world, start_us=START_US + 10**9, launcher_pid=None)
    for file in again.iterdir():
        shutil.copy(file, job / f"{file.stem}-2.vram")
    attempts = find_attempts([job])
    assert [len(files.ranks) for files in attempts] == [4, world]
    assert all("-2" in str(file.recording) for file in attempts[1].ranks)


@pytest.mark.parametrize(("after_us", "attempt"), [(61_000_000, 0), (2 * 10**9, 1)])
def test_a_flight_record_is_of_the_attempt_that_had_begun_when_it_was_written(
    tmp_path: Path, after_us: int, attempt: int
) -> None:
    from support.recordings import DATA

    job = write_job(tmp_path / "job", 2, trigger="sigterm", attempt=0)
    write_job(job, 2, start_us=START_US + 10**9, attempt=1)
    flight = job / "rank0.nccl.pickle.xz"
    shutil.copy(DATA / "ranks/desync/desync.rank0.nccl.pickle.xz", flight)
    written_s = (START_US + after_us) / 1e6
    os.utime(flight, (written_s, written_s))
    attempts = find_attempts([job])
    assert [files.ranks[0].flight is not None for files in attempts].index(True) == attempt


def test_an_attempt_that_is_exported_later_joins_its_job(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    first = write_job(tmp_path / "a" / "job", 4, attempt=0)
    second = write_job(tmp_path / "b" / "job", 2, start_us=START_US + 10**9, attempt=1)
    export_lake([first], root, "job", is_given=False)
    assert export_lake([second], root, "job", is_given=False).run == "job"
    assert Lake(root).runs == {"job": [0, 1]}


def test_a_half_written_lake_says_what_is_missing(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", 2, world=4)
    root = str(tmp_path / "lake")
    file = find_ranks([job]).ranks[0]
    stage_rank(root, "x", 0, 0, RankSources(file.recording))  # and then it was killed
    comparison = compare_files([root])
    assert [rank.rank for rank in comparison.ranks] == [0]
    assert comparison.missing == (1, 2, 3)
    assert any("did not finish" in note for note in comparison.notes)
    exported = export_lake([job], root, "x")
    assert (exported.ranks, exported.missing) == (2, (2, 3))
    comparison = compare_files([root])
    assert [rank.rank for rank in comparison.ranks] == [0, 1]
    assert not any("did not finish" in note for note in comparison.notes)
    assert Lake(root).sql("SELECT missing_ranks FROM runs")[1] == [([2, 3],)]
    assert not list((tmp_path / "lake" / "_staging").rglob("*.parquet"))


def test_ranks_share_files_after_the_commit(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    export_lake([write_job(tmp_path / "job", 3)], str(root), "x")
    parts = {path.parent.parent.name: path.name for path in root.rglob("*.parquet")}
    assert parts["events"] == parts["lines"] == "part-0-00000.parquet"
    assert parts["runs"] == parts["stacks"] == "part-0.parquet"
    assert sum(1 for _ in root.rglob("*.parquet")) == len(parts)


def test_a_stack_is_there_once_whatever_ranks_have_it(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    export_lake([write_job(tmp_path / "job", 3)], root, "x")
    _, rows = Lake(root).sql("SELECT count(*), count(DISTINCT stack) FROM stacks")
    assert rows[0][0] == rows[0][1] > 10
    _, rows = Lake(root).sql(
        "SELECT (SELECT count(*) FROM events WHERE stack IS NOT NULL), count(*)"
        " FROM events JOIN stacks USING (run, attempt, stack)"
    )
    assert rows[0][0] == rows[0][1] > 1000
