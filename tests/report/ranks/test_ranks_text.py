"""The text of ``vramlens ranks``: what comes next depends on the cause."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from support.documents import print_answer
from support.recordings import DATA, data_of, read
from vramlens.ranks import compare, summarise
from vramlens.ranks.rank_failures import FailedRank
from vramlens.read.flight_record import read_flight_record
from vramlens.report.ranks.story import failed_words
from vramlens.trace.rank_error import RankError


def test_a_leak_is_followed_to_what_keeps_it() -> None:
    names = [f"ranks/leak_rank1/leak_rank1.rank{rank}" for rank in (0, 1)]
    found = compare([summarise(read(data_of(name)), rank) for rank, name in enumerate(names)])
    assert found.differences[0].cause == "leak"
    console = Console(file=io.StringIO(), width=100)
    print_answer(found, console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[-2] == "Next, see what each step leaves behind on rank 1:"
    assert lines[-1].startswith("  vramlens leaks ")


def test_flight_records_alone_end_with_a_command_for_the_memory() -> None:
    flights = {
        rank: read_flight_record(DATA / "ranks" / "ddp" / f"ddp.rank{rank}.nccl.pickle.xz")
        for rank in (0, 1)
    }
    console = Console(file=io.StringIO(), width=100)
    print_answer(compare([], flights), console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[-2] == "Next, also record the memory of the ranks:"
    assert lines[-1].startswith("  torchrun --nproc-per-node GPUS --no-python vramlens run -o ")


def test_a_file_with_blanks_in_its_name_can_be_pasted() -> None:
    (one,) = [summarise(read(data_of("ranks/ddp/ddp.rank0")), 0)]
    console = Console(file=io.StringIO(), width=100)
    print_answer(compare([replace(one, source="my run; rm x.vram")]), console)
    last = console.file.getvalue().splitlines()[-1]  # type: ignore[attr-defined]
    assert last == "  vramlens explain 'my run; rm x.vram'"


def test_the_table_of_ranks_fits_sixty_columns() -> None:
    names = [f"ranks/rank0_gather/rank0_gather.rank{rank}" for rank in (0, 1)]
    found = compare([summarise(read(data_of(name)), rank) for rank, name in enumerate(names)])
    for by_device in (False, True):
        console = Console(file=io.StringIO(), width=60)
        print_answer(replace(found, by_device=by_device), console)
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        start = next(index for index, line in enumerate(lines) if "peak requested" in line)
        header, first = lines[start : start + 2]
        assert first.endswith("  differs")
        assert len(first) <= 60
        assert first.index("2.59 GiB") + 8 == header.index("peak requested") + 14


def test_a_long_error_keeps_the_place_where_it_was_raised() -> None:
    text = "RuntimeError: " + "a reason, " * 40
    message = f"{text}, at /home/user/train.py:105 in main"
    error = RankError("run.vram", message, None, (), follows=True)
    words = failed_words(FailedRank(0, None, error, follows=True))
    assert words.endswith("…, at /home/user/train.py:105 in main")
    assert len(words) < 200
