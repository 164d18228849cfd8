"""A lake: what is written is what was read, exports go on where they stopped, and SQL gets
answers.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest

from support.recordings import DATA, data_of
from support.vram_files import vram
from vramlens.cli.main import main
from vramlens.errors import InputError, UsageError
from vramlens.fleet import (
    Lake,
    compare_files,
    export_lake,
    find_ranks,
    is_lake,
    read_job,
    read_lake,
)
from vramlens.report.ranks.json import comparison_to_json

pytest.importorskip("duckdb")
LEAK = DATA / "ranks/leak_rank1"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lake")
    export_lake([LEAK], str(root), "leak")
    export_lake([DATA / "ranks/desync"], str(root), "desync")
    return root


def test_summaries_come_back_as_they_were(lake: Path) -> None:
    files = read_job(find_ranks([LEAK]))
    back = read_lake(Lake(lake, "leak"))
    assert back.summaries == files.summaries
    assert {rank: one.collectives for rank, one in back.flights.items()} == {
        rank: one.collectives for rank, one in files.flights.items()
    }
    assert back.missing == ()


def test_the_answer_is_the_same(lake: Path) -> None:
    assert compare_files([lake], run="leak").differences == compare_files([LEAK]).differences
    assert (
        compare_files([lake], run="desync").collectives
        == compare_files([DATA / "ranks/desync"]).collectives
    )


def test_events_are_all_there(lake: Path) -> None:
    found = Lake(lake, "leak")
    _, rows = found.sql(
        "SELECT rank, count(*), sum(size_bytes) FILTER (action = 'alloc') FROM events GROUP BY 1 ORDER BY 1"
    )
    for (rank, count, size), summary in zip(rows, found.summaries(), strict=True):
        assert rank == summary.rank
        assert size == sum(line.total_bytes for line in summary.lines)
        assert count > 7000


def test_stacks_have_one_id_on_every_rank(lake: Path) -> None:
    _, rows = Lake(lake, "leak").sql(
        "SELECT count(DISTINCT stack), count(DISTINCT frames) FROM stacks"
    )
    assert rows[0][0] == rows[0][1]


def test_an_export_goes_on_where_it_stopped(tmp_path: Path) -> None:
    job, root = tmp_path / "job", str(tmp_path / "lake")
    shutil.copytree(LEAK, job)
    first = export_lake([job], root, "x")
    assert first.events > 10_000
    assert export_lake([job], root, "x").events == 0
    os.utime(next(job.glob("*rank1.pickle.xz")), (4e9, 4e9))
    again = export_lake([job], root, "x")
    assert 0 < again.events < first.events
    assert Lake(root).sql("SELECT rank, count(*) FROM ranks GROUP BY 1 ORDER BY 1")[1] == [
        (0, 1),
        (1, 1),
    ]
    assert Lake(root).sql("SELECT count(*) FROM events")[1] == [(first.events,)]


def test_a_rank_without_gpu_memory_leaves_the_tables_whole(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "rank0.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": [[]]}))
    (folder / "rank1.pickle").write_bytes(data_of("ranks/leak_rank1/leak_rank1.rank1"))
    export_lake([folder], str(tmp_path / "lake"), "x")
    found = Lake(tmp_path / "lake")
    for table, key in (
        ("lines", "file"),
        ("events", "action"),
        ("stacks", "frames"),
        ("steps", "peak_bytes"),
    ):
        _, rows = found.sql(f"SELECT count(*), count({key}) FROM {table}")
        assert rows[0][0] == rows[0][1] > 0
    assert found.sql("SELECT DISTINCT rank FROM events")[1] == [(1,)]


def test_no_scratch_files_stay(lake: Path) -> None:
    assert [
        path for path in lake.rglob("*") if path.name.startswith(".") or path.name.endswith(".part")
    ] == []


def test_what_is_no_lake(tmp_path: Path, lake: Path) -> None:
    assert not is_lake(tmp_path)
    with pytest.raises(InputError, match="no lake"):
        Lake(tmp_path)
    with pytest.raises(InputError, match="several runs"):
        read_lake(Lake(lake))
    with pytest.raises(InputError, match="no run y"):
        Lake(lake, "y")
    with pytest.raises(UsageError, match="--sql"):
        Lake(lake, "leak").sql("SELEKT 1")
    with pytest.raises(
        UsageError, match=r"tables: runs, ranks, findings, failures, lines, steps, events"
    ):
        Lake(lake, "leak").sql("SELECT * FROM nothing")


def test_sql_on_the_command_line(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = "SELECT rank, peak_requested_bytes FROM ranks ORDER BY rank"
    assert main(["ranks", str(lake), "--run", "leak", "--sql", question]) == 0
    assert capsys.readouterr().out == "rank\tpeak_requested_bytes\n0\t360097800\n1\t846045220\n"
    assert main(["ranks", str(lake), "--run", "leak", "--sql", question, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == [[0, 360097800], [1, 846045220]]
    assert main(["ranks", str(LEAK), "--sql", question]) == 2


def test_a_lake_tells_failures_as_the_folder_does(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    data = data_of("ranks/leak_rank1/leak_rank1.rank0")
    for rank, trigger in enumerate(("sigterm", "error", "exit", "sigterm")):
        meta = {
            "rank": rank,
            "world_size": 8,
            "trigger": trigger,
            "written_us": 1_700_000_000_000_000 + rank,
        }
        vram(folder / f"{rank}.vram", data, meta)
    shutil.copy(LEAK / "leak_rank1.rank0.nccl.pickle.xz", folder / "nccl_rank0.pickle.xz")
    frames = 'Traceback:\n  File "train/job.py", line 33, in step\n    load()\n'
    for rank, (message, time) in {
        2: ("ValueError: bad", "1699999990"), 3: ("RuntimeError: Connection closed by peer", "x"), 5: ("SystemError", ""),
    }.items():  # fmt: skip
        inner = {"message": message, "extraInfo": {"py_callstack": frames, "timestamp": time}}
        (folder / f"error_rank{rank}.json").write_text(json.dumps({"message": inner}))
    # What cannot be read costs itself, and neither its rank nor the rank's other files.
    (folder / "nccl_rank2.pickle").write_bytes(b"\x80\x04}.")
    (folder / "error_rank0.json").write_text('{"message": 3, "extraInfo": 0}')
    here = compare_files([folder])
    export_lake([folder], str(tmp_path / "lake"), "x", where="2")
    there = comparison_to_json(compare_files([tmp_path / "lake"]))
    assert there == comparison_to_json(here)
    assert [(one.rank, one.follows) for one in here.failures.failed] == [
        (2, False),
        (1, False),
        (5, False),
        (3, True),
    ]
    assert here.failures.victims == (0,)
    assert sum(note.startswith(("rank 0: ", "rank 2: ")) for note in here.notes) == 2
    _, rows = Lake(tmp_path / "lake").sql(
        "SELECT rank, message, line FROM failures WHERE kind = 'error_file' AND NOT follows"
        " ORDER BY rank"
    )
    assert rows == [(2, "ValueError: bad", 33), (5, "SystemError", 33)]
