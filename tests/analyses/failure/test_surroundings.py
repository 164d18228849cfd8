"""What lies around the allocator, from the recording itself: measured ledgers, limits, other
processes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.recordings import DATA, data_of, truth_of
from support.vram_files import TOTAL, vram
from vramlens import explain
from vramlens.analyses.explanation import Explanation
from vramlens.units import GIB, MIB


def ledger(
    *, total: int = TOTAL, others: int = 0, free: int = 131 * GIB, **rows: int
) -> dict[str, Any]:
    kinds = {"pytorch_allocated": 2 * GIB, "nccl": 300 * MIB, "driver_reserved": 600 * MIB} | rows
    kinds |= {"other_processes": others, "free": free}
    kinds["this_process_other"] = total - sum(kinds.values())
    parts = [
        {"kind": kind, "bytes": size, "confidence": "exact", "note": "so"}
        for kind, size in kinds.items()
    ]
    return {"end": {"devices": {"0": {"total_bytes": total, "rows": parts}}}}


def limited(fraction: float) -> dict[str, Any]:
    limit = int(TOTAL * fraction)
    return {"0": {"total_bytes": TOTAL, "memory_fraction": fraction, "limit_bytes": limit}}


def explained(
    path: Path, name: str, meta: dict[str, Any] | None = None, **parts: Any
) -> Explanation:
    return explain(vram(path / "a.vram", data_of(name), meta, **parts))


def test_the_measured_ledger_replaces_the_inferred_one(tmp_path: Path) -> None:
    rows = explained(tmp_path, "recordings/gpt", ledger=ledger()).ledger
    assert sum(row.bytes for row in rows) == TOTAL
    assert {row.kind for row in rows} >= {"nccl", "driver_reserved", "this_process_other"}
    assert {row.confidence for row in rows} == {"exact"}
    assert {row.note for row in rows} == {"so"}


def test_at_the_failure_when_written_for_it(tmp_path: Path) -> None:
    assert any(
        row.kind == "nccl"
        for row in explained(tmp_path, "recordings/oom_train", ledger=ledger()).ledger
    )


def test_a_ledger_from_after_the_failure_is_not_the_failures(tmp_path: Path) -> None:
    found = explained(tmp_path, "found/oom_recovered", ledger=ledger())
    assert found.oom is not None
    assert not any(row.kind == "nccl" for row in found.ledger)
    assert sum(row.bytes for row in found.ledger) == TOTAL


def test_what_the_person_says_of_the_total_counts_more(tmp_path: Path) -> None:
    path = vram(tmp_path / "a.vram", data_of("recordings/gpt"), ledger=ledger())
    rows = explain(path, total_bytes=80 * GIB).ledger
    assert sum(row.bytes for row in rows) == 80 * GIB
    for same in (TOTAL, 140 * GIB):
        assert explain(path, total_bytes=same).ledger == explain(path).ledger


@pytest.mark.parametrize(
    "name", ["recordings/oom_train", "recordings/oom_leak", "found/oom_wrapped"]
)
def test_the_limit_is_known_without_a_log(name: str, tmp_path: Path) -> None:
    truth = truth_of(name)
    limit = truth["oom"]["device_allocated"]  # what the observer is given: the limit
    found = explained(tmp_path, name, {"devices": limited(limit / TOTAL) | {"1": {}}})
    log = tmp_path / "error.log"
    log.write_text(truth["oom_message"])
    said = explain(DATA / f"{name}.pickle.xz", log=log)
    assert found.oom is not None
    assert said.oom is not None
    assert (
        (found.oom.wall, found.oom.cause)
        == (said.oom.wall, said.oom.cause)
        == ("process_limit", said.oom.cause)
    )
    assert found.oom.limit_bytes is not None
    assert abs(found.oom.limit_bytes - limit) <= 1
    assert not [text for text in found.oom.unknowns if "--log" in text]
    assert found.oom.short_by_bytes is not None


def test_a_full_device_is_no_limit(tmp_path: Path) -> None:
    found = explained(tmp_path, "found/capacity_oom_device").oom
    assert found is not None
    assert (found.wall, found.limit_bytes) == ("device", None)


def test_a_limit_that_was_not_reached_did_not_refuse(tmp_path: Path) -> None:
    found = explained(tmp_path, "found/capacity_oom_other_process", {"devices": limited(0.5)}).oom
    assert found is not None
    assert found.wall == "device"
    assert found.limit_bytes == int(TOTAL * 0.5)


def test_other_processes_from_the_measured_ledger(tmp_path: Path) -> None:
    others = ledger(others=136 * GIB, free=207_159_296)
    found = explained(tmp_path, "found/capacity_oom_other_process", ledger=others).oom
    assert found is not None
    assert found.wall == "other_process"


def test_the_recorded_message_serves_as_the_log(tmp_path: Path) -> None:
    truth = truth_of("found/capacity_oom_other_process")
    failure = {"device": 0, "requested_bytes": 1, "message": truth["oom_message"]}
    found = explained(tmp_path, "found/capacity_oom_other_process", {"oom": failure})
    assert found.oom is not None
    assert found.oom.wall == "other_process"
    assert any(row.kind == "other_processes" for row in found.ledger)
    other = explained(
        tmp_path, "recordings/oom_train", {"oom": failure}
    )  # another run's: passed over
    assert other.oom is not None
    assert other.oom.wall == "process_limit"


def test_a_message_that_is_no_text(tmp_path: Path) -> None:
    failure = {"device": 0, "message": "\ud800 CUDA out of memory. Tried to allocate 1.00 GiB."}
    assert explained(tmp_path, "recordings/oom_train", {"oom": failure}).oom is not None
