"""Ranks on GPUs of others: contexts that only the driver sees, and which GPU is a rank's own."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import vramlens
from support.recordings import DATA, data_of, read
from vramlens.ranks import Comparison, RankSummary, compare, summarise
from vramlens.ranks.hints import Hint
from vramlens.ranks.rank_summary import Stray
from vramlens.trace import Meta
from vramlens.trace.rank_error import RankError
from vramlens.units import GIB, MIB

CONTEXT = 520 * MIB


def rank_of(number: int, *, host: str = "node0", per_host: int = 4) -> RankSummary:
    return RankSummary(
        rank=number,
        source=f"rank{number}.vram",
        host=host,
        device=number % per_host,
        world_size=4,
        peak_requested_bytes=GIB,
        peak_allocated_bytes=GIB,
        peak_reserved_bytes=GIB,
        ledger=(("pytorch_allocated", GIB), ("other_processes", 0)),
        driver_pid=9000 + number,
    )


def seen_from_first(ranks: Sequence[RankSummary], *pids: int) -> list[RankSummary]:
    """The ranks, with processes on the first one's GPU."""
    ledger = (("pytorch_allocated", GIB), ("other_processes", len(pids) * CONTEXT))
    neighbors = tuple((pid, CONTEXT) for pid in pids)
    return [replace(ranks[0], ledger=ledger, neighbors=neighbors), *ranks[1:]]


def named_causes(answer: Comparison) -> list[tuple[tuple[int, ...], str, int]]:
    return [(one.ranks, one.cause, one.bytes) for one in answer.differences]


def test_contexts_of_peers_are_theirs_and_no_other_process() -> None:
    ranks = seen_from_first([rank_of(number) for number in range(4)], 9001, 9002, 9003)
    answer = compare(ranks)
    assert named_causes(answer) == [((1, 2, 3), "stray_context", CONTEXT)]
    assert "CUDA context on GPU 0" in answer.differences[0].evidence[0]


def test_a_foreign_process_beside_a_peers_context_is_told_alone() -> None:
    ranks = seen_from_first([rank_of(number) for number in range(4)], 9001, 77)
    assert named_causes(compare(ranks)) == [
        ((1,), "stray_context", CONTEXT),
        ((0,), "other_process", CONTEXT),
    ]


def test_another_job_is_a_note_where_the_rank_did_not_run_out_of_memory() -> None:
    ranks = seen_from_first([rank_of(number) for number in range(4)], 77)
    error = RankError("e0", "ValueError: bad batch", 100, (), False)
    answer = compare(ranks, errors={0: error})
    assert named_causes(answer) == []
    assert any("rank 0 shares its GPU with another process" in note for note in answer.notes)


def test_ranks_that_share_a_gpu_are_no_strays() -> None:
    ranks = [rank_of(number, per_host=1) for number in range(4)]
    alike = [
        replace(
            rank,
            ledger=(("pytorch_allocated", GIB), ("other_processes", 3 * CONTEXT)),
            neighbors=tuple((9000 + other, CONTEXT) for other in range(4) if other != rank.rank),
        )
        for rank in ranks
    ]
    assert compare(alike).differences == ()


def test_processes_of_another_host_are_not_the_jobs() -> None:
    ranks = [rank_of(number, host=f"node{number // 2}", per_host=2) for number in range(4)]
    ranks = seen_from_first(ranks, 9003)  # that number is of a rank on the other host
    assert named_causes(compare(ranks)) == [((0,), "other_process", CONTEXT)]


def test_a_stray_on_another_host_explains_nothing_here() -> None:
    ranks = [rank_of(number, host=f"node{number // 2}", per_host=2) for number in range(4)]
    ranks = seen_from_first(ranks, 77)
    ranks[3] = replace(ranks[3], strays=(Stray(0, 64 * MIB, None, None, Hint.NONE),))
    assert ((0,), "other_process", CONTEXT) in named_causes(compare(ranks))


def with_ledger(recording: Path, target: Path, devices: dict[str, object]) -> Path:
    """A copy of a recording, with another ledger at its end."""
    with zipfile.ZipFile(recording) as source, zipfile.ZipFile(target, "w") as copy:
        for name in source.namelist():
            data = source.read(name)
            if name == "ledger.json":
                content = json.loads(data)
                content["end"]["devices"] |= devices
                data = json.dumps(content).encode()
            copy.writestr(name, data)
    return target


def ledger_of(device: int, rows: dict[str, int], processes: Sequence[object]) -> dict[str, object]:
    entries = [{"kind": kind, "bytes": size, "confidence": "exact"} for kind, size in rows.items()]
    total = sum(rows.values())
    return {"device": device, "total_bytes": total, "rows": entries, "processes": processes}


def test_the_summary_knows_contexts_and_neighbors_from_the_driver(tmp_path: Path) -> None:
    home = ledger_of(
        0,
        {"pytorch_allocated": GIB, "other_processes": CONTEXT, "free": GIB},
        [
            {"pid": 12, "bytes": GIB, "is_this": True},
            {"pid": 13, "bytes": CONTEXT, "is_this": False},
            {"pid": 14, "bytes": None, "is_this": False},
        ],
    )
    other = ledger_of(1, {"this_process_other": CONTEXT, "free": GIB}, [])
    unused = ledger_of(2, {"this_process_other": 0, "free": GIB}, [])
    recording = DATA / "captured" / "ddp-rank0.vram"
    path = with_ledger(recording, tmp_path / "r.vram", {"0": home, "1": other, "2": unused})
    summary = summarise(vramlens.load(path), 0)
    assert summary.device == 0
    assert (summary.driver_pid, summary.neighbors) == (12, ((13, CONTEXT),))
    assert summary.strays == (Stray(1, 0, CONTEXT, None, Hint.NONE),)


def test_a_rank_works_on_the_gpu_of_its_number_on_its_machine() -> None:
    """Also where it holds as much on another one; not where it never used that GPU."""
    trace = read(data_of("ranks/wrong_device/wrong_device.rank1"))
    home = trace.devices[1]
    both = replace(trace, devices={0: replace(home, device=0), 1: home})
    assert summarise(both, 1).device == 0
    summary = summarise(replace(both, meta=Meta(local_rank=1)), 1)
    assert (summary.device, [stray.device for stray in summary.strays]) == (1, [0])
    assert summarise(replace(trace, meta=Meta(local_rank=7)), 1).device == trace.main_device
