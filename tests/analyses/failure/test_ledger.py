"""Ledgers close exactly, or are not made."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.recordings import DATA, truth_of
from vramlens import explain
from vramlens.analyses.failure.surroundings import ledger_of
from vramlens.units import GIB, MIB

FAILED = [
    "recordings/oom_train",
    "recordings/oom_leak",
    "found/oom_holes",
    "found/capacity_oom_other_process",
]


@pytest.mark.parametrize("name", FAILED)
def test_rows_sum_to_the_device(name: str, tmp_path: Path) -> None:
    truth, log = truth_of(name), tmp_path / "error.log"
    log.write_text(truth["oom_message"])
    total = truth["mem_get_info"][1]
    rows = explain(DATA / f"{name}.pickle.xz", log=log, total_bytes=total).ledger
    assert sum(row.bytes for row in rows) == total
    assert all(row.bytes >= 0 for row in rows)
    printed = explain(DATA / f"{name}.pickle.xz", log=log).ledger
    assert sum(row.bytes for row in printed) == round(139.80 * GIB)


def test_from_the_recording_and_a_total() -> None:
    truth = truth_of("recordings/oom_train")
    total, free = truth["mem_get_info"][1], truth["oom"]["device_free"]
    rows = {
        row.kind: row
        for row in explain(DATA / "recordings/oom_train.pickle.xz", total_bytes=total).ledger
    }
    assert {kind: row.bytes for kind, row in rows.items()} == {
        "pytorch_allocated": 2_931_556_352,
        "pytorch_cached": 194.25 * MIB,
        "outside_pytorch": total - 3_135_242_240 - free,
        "free": free,
    }
    assert rows["outside_pytorch"].confidence == "inferred"


def test_an_error_text_takes_the_total_that_is_given(tmp_path: Path) -> None:
    log = tmp_path / "error.log"
    log.write_text("CUDA out of memory. Tried to allocate 20.00 MiB. Of the allocated memory 1.00 GiB is allocated by "
                   "PyTorch, and 4.00 MiB is reserved by PyTorch but unallocated.\n")  # fmt: skip
    assert explain(log).ledger == ()
    assert sum(row.bytes for row in explain(log, total_bytes=8 * GIB).ledger) == 8 * GIB


def test_no_total_no_ledger() -> None:
    assert explain(DATA / "recordings/oom_train.pickle.xz").ledger == ()


def test_without_the_drivers_word_the_rest_is_unknown() -> None:
    rows = ledger_of(100, 30, 40, None)
    assert [(row.kind, row.bytes, row.confidence) for row in rows] == [
        ("pytorch_allocated", 30, "exact"),
        ("pytorch_cached", 10, "exact"),
        ("unknown", 60, "unknown"),
    ]


@pytest.mark.parametrize("figures", [(100, 30, 110, None), (100, 30, 60, 50), (100, 70, 60, 10)])
def test_contradictions_make_no_ledger(figures: tuple[int, int, int, int | None]) -> None:
    assert ledger_of(*figures) == ()
