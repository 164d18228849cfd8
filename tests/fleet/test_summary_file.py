"""Summaries beside recordings: the same answer from kilobytes, as long as they are current."""

from __future__ import annotations

import os
import random
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.lake_jobs import write_job
from support.made_jobs import Validates, done, factory
from vramlens.allowance import allowance
from vramlens.errors import InputError
from vramlens.fleet import compare_files, files, find_ranks
from vramlens.fleet.summary_file import ENDING, main, open_summary, summary_in, write_summary
from vramlens.report.ranks.json import comparison_to_json


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(tmp_path / "job", 3)


def summarise_all(job: Path) -> None:
    for recording in sorted(job.glob("*.vram")):
        write_summary(str(recording))


def test_the_answer_from_summaries_is_that_from_recordings(job: Path) -> None:
    before = comparison_to_json(compare_files([job]))
    summarise_all(job)
    assert all(file.summary is not None for file in find_ranks([job]).ranks)
    assert comparison_to_json(compare_files([job])) == before
    assert all(os.path.getsize(path) < 5_000 for path in job.glob(f"*{ENDING}"))


def test_summaries_alone_are_enough(job: Path) -> None:
    before = compare_files([job])
    summarise_all(job)
    for recording in job.glob("*.vram"):
        recording.unlink()
    after = compare_files([job])
    assert after.differences == before.differences
    assert after.missing == ()


def test_a_summary_of_another_recording_does_not_count(job: Path) -> None:
    summarise_all(job)
    write_job(job, 2, world=3, command=["python", "another_program.py", "--other"])
    files = {file.rank: file for file in find_ranks([job]).ranks}
    assert [files[rank].summary is None for rank in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    "data",
    [b"", b"x", zlib.compress(b"[1]"), zlib.compress(b"{}"), zlib.compress(b"[" * 100_000)],
)
def test_a_summary_that_is_none_costs_nothing(job: Path, data: bytes) -> None:
    path = job / f"rank00001.vram{ENDING}"
    path.write_bytes(data)
    with pytest.raises(InputError):
        summary_in(open_summary(str(path)))
    assert [rank.rank for rank in compare_files([job]).ranks] == [0, 1, 2]


def test_a_summary_that_expands_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / f"rank0.vram{ENDING}"
    path.write_bytes(zlib.compress(b" " * (1 << 25)))
    with pytest.raises(InputError, match="expands"):
        summary_in(open_summary(str(path)))


def test_what_a_rank_runs_at_its_end(job: Path, tmp_path: Path) -> None:
    assert main([str(job / "rank00000.vram")]) == 0
    assert summary_in(open_summary(str(job / f"rank00000.vram{ENDING}"))).summary.rank == 0
    assert main([str(tmp_path / "nothing.vram")]) == 1


def test_summaries_count_as_input_of_the_verb_that_reads_them(job: Path) -> None:
    """Thousands of them, without a recording, take memory that no other file justifies."""
    path = Path(write_summary(str(job / "rank00000.vram")))
    with allowance() as allowed:
        before = allowed.most_bytes
        summary_in(open_summary(str(path)))
        assert allowed.input_bytes > path.stat().st_size
        assert allowed.most_bytes > before


def test_summaries_are_opened_a_few_at_a_time(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"rank{rank}.vram.summary") for rank in range(1000)]
    for path in paths:
        Path(path).write_bytes(b"none")
    with ThreadPoolExecutor(files._OPENED_AT_ONCE) as threads:
        unread = files._unread_summaries(paths, threads)
        first = next(unread)
        Path(paths[-1]).write_bytes(b"later")
        last = list(unread)[-1]
    assert (first.path, last.path) == (paths[0], paths[-1])
    assert last.data == b"later"


def test_a_caller_of_one_rank_is_found_from_summaries(tmp_path: Path) -> None:
    made = factory(random.Random("3"), tmp_path, "gpt", world=4, vram=True)
    made.habits[1] = [Validates(1.3)]
    done(made, "validates")
    from_recordings = compare_files([tmp_path]).differences
    summarise_all(tmp_path)
    from_summaries = compare_files([tmp_path]).differences
    assert from_summaries == from_recordings
    assert [str(one.place) for one in from_summaries] == ["train/validate.py:39 in validate"]
