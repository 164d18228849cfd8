"""Which file belongs to which rank; and what is told of the files that do not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.recordings import DATA, data_of
from support.vram_files import vram
from vramlens.api import load
from vramlens.errors import InputError
from vramlens.fleet import compare_files, find_ranks, read_job
from vramlens.fleet import job as job_module
from vramlens.trace import Trace

LEAK = DATA / "ranks/leak_rank1"


def put(folder: Path, *names: str, rank: int = 0) -> list[Path]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(LEAK / f"leak_rank1.rank{rank}.pickle.xz", folder / name)
    return [folder / name for name in names]


@pytest.mark.parametrize(
    "pattern",
    [
        "rank{}.pickle.xz", "job.rank{}.pickle.xz", "snapshot_rank_{}.pickle.xz", "Rank-{:05d}.pickle.xz", "r{}.pickle.xz",
        "rank{}/memory_snapshot.pickle.xz", "rank{}_memory_snapshot.pickle.xz", "step100/rank{}.pickle.xz",
    ],
)  # fmt: skip
def test_names_that_say_the_rank(tmp_path: Path, pattern: str) -> None:
    put(tmp_path, *(pattern.format(rank) for rank in (0, 1, 11)))
    found = find_ranks([tmp_path])
    assert [one.rank for one in found.ranks] == [0, 1, 11]
    assert found.missing == tuple(range(2, 11))
    assert found.notes == ()


@pytest.mark.parametrize("folder", ["r1", "runs/R12"])
def test_a_run_s_folder_says_no_rank(tmp_path: Path, folder: str) -> None:
    """``runs/r1`` with the snapshots of several ranks; with one each they are ranks."""
    put(tmp_path / folder, *(f"snapshot-{rank}.pickle.xz" for rank in range(3)))
    found = find_ranks([tmp_path])
    assert [files.rank for files in found.ranks] == [0, 1, 2]
    assert "numbered in the order of their names" in found.notes[0]
    assert found.several_jobs == ""
    put(tmp_path / folder, "snapshot-rank7.pickle.xz")
    assert 7 in [files.rank for files in find_ranks([tmp_path]).ranks]


@pytest.mark.parametrize("second", [(), ("r3/oom.pickle.xz",)])
def test_folders_with_one_recording_each_say_the_ranks(
    tmp_path: Path, second: tuple[str, ...]
) -> None:
    """Also where one of the ranks left two."""
    put(tmp_path, *(f"r{rank}/snapshot.pickle.xz" for rank in (0, 1, 3)), *second)
    found = find_ranks([tmp_path])
    assert [files.rank for files in found.ranks] == [0, 1, 3]
    assert found.several_jobs == ""


def test_names_that_do_not_say_it_are_numbered_in_order(tmp_path: Path) -> None:
    found = find_ranks(put(tmp_path, "b.pickle.xz", "a.pickle.xz"))
    assert [one.rank for one in found.ranks] == [0, 1]
    assert "numbered in the order of their names" in found.notes[0]


@pytest.mark.parametrize(
    "names",
    [
        [f"snapshot-{number}.pickle.xz" for number in range(12)],
        [f"node{host}/gpu{gpu}.pickle.xz" for host in range(11) for gpu in range(2)],
        ["a2.pickle.xz", "a10.pickle.xz", "b1.pickle.xz"],
        ["x009.pickle.xz", "x9.pickle.xz", "x10.pickle.xz", "x\u0662.pickle.xz"],
    ],
)
def test_numbers_in_names_are_in_the_order_of_numbers(tmp_path: Path, names: list[str]) -> None:
    """ "snapshot-10" comes after "snapshot-2"; names without numbers are in alphabetical order."""
    put(tmp_path, *reversed(names))
    found = find_ranks([tmp_path])
    paths = [str(one.recording).removeprefix(f"{tmp_path}/") for one in found.ranks]
    assert [one.rank for one in found.ranks] == list(range(len(names)))
    assert paths == names


def test_a_recording_says_its_rank_itself(tmp_path: Path) -> None:
    vram(
        tmp_path / "whatever.vram",
        data_of("ranks/leak_rank1/leak_rank1.rank0"),
        {"rank": 6, "world_size": 8},
    )
    found = find_ranks([tmp_path])
    assert [one.rank for one in found.ranks] == [6]
    assert found.world_size == 8
    assert found.missing == (0, 1, 2, 3, 4, 5, 7)


def test_the_failure_is_taken_of_several(tmp_path: Path) -> None:
    data = data_of("ranks/leak_rank1/leak_rank1.rank0")
    for name, trigger, written in (("a", "exit", 9), ("b", "oom", 5), ("c", "signal", 7)):
        vram(
            tmp_path / f"{name}.vram",
            data,
            {"rank": 0, "world_size": 1, "trigger": trigger, "written_us": written},
        )
    found = find_ranks([tmp_path])
    assert [Path(one.recording or "").name for one in found.ranks] == ["b.vram"]
    assert found.notes[0] == "1 rank with more than one recording: taken b.vram; 2 left out"


def test_a_folder_of_several_jobs_is_not_compared_as_one(tmp_path: Path) -> None:
    data = data_of("ranks/leak_rank1/leak_rank1.rank0")
    for job in ("a", "b", "c"):
        (tmp_path / job).mkdir()
        vram(tmp_path / job / "rank0.vram", data, {"rank": 0, "world_size": 1})
    with pytest.raises(InputError, match=r"3 jobs \(.*\) would be compared as one: choose the fol"):
        compare_files([tmp_path])
    assert len(compare_files([tmp_path / "a"]).ranks) == 1


def test_mixed_runs_are_told(tmp_path: Path) -> None:
    data = data_of("ranks/leak_rank1/leak_rank1.rank0")
    for rank, world, version in ((0, 2, "2.11.0"), (1, 4, "2.12.0")):
        vram(tmp_path / f"{rank}.vram", data, {"rank": rank, "world_size": world, "torch": version})
    notes = " ".join(find_ranks([tmp_path]).notes)
    assert "from two runs?" in notes
    assert "different versions of PyTorch" in notes


def test_a_folder_that_was_used_twice_is_told(tmp_path: Path) -> None:
    data = data_of("ranks/leak_rank1/leak_rank1.rank0")
    minute = 60_000_000
    for rank, host, began, ended in (
        (0, "a", 90, 95),
        (1, "a", 1, 80),
        (2, "a", 91, 95),
        (3, "b", 1, 2),
        (4, "a", 2, 89),
    ):
        meta = {
            "rank": rank,
            "world_size": 5,
            "host": host,
            "started_us": began * minute,
            "written_us": ended * minute,
        }
        vram(tmp_path / f"{rank}.vram", data, meta)
    # Rank 3's machine may have another clock.
    assert find_ranks([tmp_path]).notes == (
        "ranks 1, 4 were written before other ranks of the same machine started: from an earlier run?",
    )
    (tmp_path / "1.vram").unlink()
    (tmp_path / "4.vram").unlink()
    assert find_ranks([tmp_path]).notes == ()


def test_one_file_twice_is_one_rank(tmp_path: Path) -> None:
    data = data_of("ranks/leak_rank1/leak_rank1.rank0")
    one = vram(tmp_path / "a.vram", data, {"rank": 1, "world_size": 2})
    shutil.copy(one, tmp_path / "a (copy).vram")
    found = find_ranks([tmp_path, one])
    assert [each.rank for each in found.ranks] == [1]
    assert found.missing == (0,)
    assert found.notes == ("1 rank with more than one recording: taken a.vram; 1 left out",)


def test_a_damaged_rank_leaves_the_others(tmp_path: Path) -> None:
    put(tmp_path, "rank0.pickle.xz", "rank2.pickle.xz")
    (tmp_path / "rank1.pickle").write_bytes(b"\x80\x04cos\nsystem\n.")
    found = read_job(find_ranks([tmp_path]))
    assert [one.rank for one in found.summaries] == [0, 2]
    assert found.missing == (1,)
    assert "rank 1" in found.notes[0]


def test_a_folder_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match="contains no recording"):
        find_ranks([tmp_path])
    with pytest.raises(InputError, match="no such file"):
        find_ranks([tmp_path / "nowhere"])


def test_a_folder_with_flight_records() -> None:
    found = compare_files([LEAK])
    assert sorted(found.flights) == [0, 1]
    assert [(one.cause, one.ranks) for one in found.differences] == [("leak", (1,))]
    assert found.notes == ()


def test_in_several_processes_it_is_the_same(tmp_path: Path) -> None:
    put(tmp_path, *(f"rank{rank}.pickle.xz" for rank in range(7)))
    put(tmp_path, "rank7.pickle.xz", rank=1)
    found = compare_files([tmp_path])
    assert [(one.cause, one.ranks) for one in found.differences] == [("leak", (7,))]
    assert len(found.ranks) == 8


def test_devices_of_one_process_are_compared() -> None:
    found = compare_files([DATA / "ranks/wrong_device/wrong_device.rank1.pickle.xz"])
    assert not found.by_device  # its second device has no events
    assert [(one.cause, one.ranks) for one in found.differences] == [
        ("stray_context", (0,))
    ] or found.ranks


def test_a_lone_recording_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counting(path: str) -> Trace:
        read.append(path)
        return load(path)

    monkeypatch.setattr(job_module, "load", counting)
    (lone,) = map(str, put(tmp_path, "rank0.pickle.xz"))
    assert len(read_job(find_ranks([lone])).summaries) == 1
    assert read == [lone]
