"""NCCL's watchdog in a log: who was in which collective, and lines that are no JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vramlens.cli.main import main
from vramlens.read.watchdog_log import read_watchdog_lines

LINE = (
    "[rank{rank}]:[E1122 10:00:00.123456789 ProcessGroupNCCL.cpp:685] {head} Watchdog caught"
    " collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={name}, NumelIn={elements},"
    " NumelOut={elements}, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"
)


def line(rank: int, seq: int, name: str, elements: int, head: str | None = None) -> str:
    return LINE.format(
        rank=rank, seq=seq, name=name, elements=elements, head=head or f"[Rank {rank}]"
    )


def explained(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    log = tmp_path / "train.log"
    log.write_text(text)
    assert main(["explain", str(log), "--json"]) == 0
    answer: dict[str, object] = json.loads(capsys.readouterr().out)
    return answer


@pytest.mark.parametrize("head", [None, "[PG ID 0 PG GUID 0(default_pg) Rank 1]"])
def test_the_watchdogs_lines_alone_tell_who_is_in_another_call(
    tmp_path: Path, head: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "".join(line(rank, 12, "ALLREDUCE", 12_304_000) for rank in (0, 2, 3))
    answer = explained(tmp_path, text + line(1, 12, "ALLREDUCE", 1, head), capsys)
    (difference,) = answer["differences"]  # type: ignore[misc]
    assert (difference["cause"], difference["ranks"]) == ("desync", [1])
    rows = {row["rank"]: row for row in answer["collectives"]}  # type: ignore[attr-defined]
    assert rows[1]["name"] == "all_reduce"
    assert rows[1]["problem"] == "size_mismatch"


def test_two_ranks_show_both_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    log.write_text("epoch 1\n" + line(0, 7, "ALLREDUCE", 1) + line(1, 7, "_ALLGATHER_BASE", 4096))
    assert main(["explain", str(log)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "different collectives" in text
    assert "rank 0: all_reduce" in text
    assert "rank 1: _all_gather_base" in text
    assert "do not show which rank is wrong" in text


def test_calls_of_different_sizes_are_shown_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text(line(0, 7, "ALLREDUCE", 1) + line(1, 7, "ALLREDUCE", 12_304_000))
    assert main(["explain", str(log)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "rank 0: all_reduce of 1 element (line not recorded)" in text
    assert "rank 1: all_reduce of 12,304,000 elements (line not recorded)" in text


def test_one_rank_alone_says_what_it_waits_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text(line(3, 7, "ALLREDUCE", 1))
    assert main(["explain", str(log)]) == 0
    assert "Rank 3 waits in all_reduce, number 7" in capsys.readouterr().out


@pytest.mark.parametrize("first", ["[rank1]: Traceback", "[2026-11-22 10:00:00,1] [INFO] x"])
def test_a_line_of_a_log_is_no_json(
    first: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"{first}\n")
    assert main(["explain", str(log)]) == 3
    assert "is text without an out-of-memory error" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[]", "[ 1, 2]", "[-1.5e3]", '["a"]', "[null]", "{}", "[\n{}]"])
def test_json_is_json(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    assert main(["explain", str(file)]) == 3
    assert "is JSON" in capsys.readouterr().err


def test_the_group_of_a_call_is_in_the_next_line() -> None:
    """PyTorch 2.11 names it there only."""
    lines = [
        "[rank1]:[E1127 18:29:41 ProcessGroupNCCL.cpp:689] [Rank 1] Watchdog caught collective"
        " operation timeout: WorkNCCL(SeqNum=2, OpType=ALLGATHER, NumelIn=1, NumelOut=2,"
        " Timeout(ms)=20000) ran for 20072 milliseconds before timing out.",
        "[rank1]:[E1127 18:29:41 ProcessGroupNCCL.cpp:2303] [PG ID 1 PG GUID 1 Rank 1]  failure"
        " detected by watchdog at work sequence id: 2 PG status: last enqueued work: 2",
        "[rank0]:[E1127 18:29:41 ProcessGroupNCCL.cpp:689] [Rank 0] Watchdog caught collective"
        " operation timeout: WorkNCCL(SeqNum=94, OpType=ALLREDUCE, NumelIn=4202497,"
        " NumelOut=4202497, Timeout(ms)=20000) ran for 20023 milliseconds before timing out.",
    ]
    records = read_watchdog_lines(lines, "train.log")
    assert {
        rank: [(call.group, call.seq) for call in record.collectives]
        for rank, record in records.items()
    } == {0: [("0", 94)], 1: [("1", 2)]}
    assert records[0].groups["0"].ranks == (0, 1)  # all are in the default group
