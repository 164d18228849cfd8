"""Verdicts on real failures: what the request hit and why, against the error's own figures and
known limits.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from support.oracle import MIB
from support.recordings import DATA, event, read, snapshot, truth_of
from vramlens import explain
from vramlens.analyses.attribution.attribution import attribute
from vramlens.analyses.explanation import Explanation, OomVerdict
from vramlens.analyses.failure.oom import failure_of
from vramlens.analyses.finding import Place
from vramlens.units import GIB

FAILED = [
    "recordings/oom_train", "recordings/oom_train_expandable", "recordings/oom_fragmented", "recordings/oom_leak",
    "found/oom_holes", "found/oom_expandable", "found/oom_wrapped", "found/spike_oom", "found/first_step_oom",
    "found/optimizer_oom", "found/capacity_oom_device", "found/capacity_oom_other_process",
]  # fmt: skip
CAPPED = [name for name in FAILED if "cap_bytes" in truth_of(name)]


def explained(name: str, folder: Path | None = None) -> Explanation:
    """The explanation of a recording, with its error's text where there is a folder to put that
    in.
    """
    log = None
    if folder is not None:
        log = folder / "error.log"
        log.write_text(truth_of(name)["oom_message"])
    return explain(DATA / f"{name}.pickle.xz", log=log)


def verdict(name: str, folder: Path | None = None) -> OomVerdict:
    oom = explained(name, folder).oom
    assert oom is not None
    return oom


def expandable(name: str, folder: Path | None = None) -> str:
    (found,) = [f for f in explained(name, folder).findings if f.id == "expandable_segments"]
    assert (found.fix is None) == (found.verdict == "not a problem")
    return found.verdict


@pytest.mark.parametrize("name", FAILED)
def test_the_figures_are_those_that_the_allocator_gave(name: str) -> None:
    oom, truth = verdict(name), truth_of(name)
    assert oom.tried_bytes == truth["oom"]["requested"]
    assert oom.free_bytes == truth["oom"]["device_free"]
    assert oom.count == truth["stats"]["num_ooms"] == 1
    assert oom.device == truth["oom"]["device"]
    assert not oom.survived
    if "stats_at_oom" in truth:
        assert oom.allocated_bytes == truth["stats_at_oom"]["allocated_bytes.all.current"]
        assert oom.reserved_bytes == truth["stats_at_oom"]["reserved_bytes.all.current"]


def test_a_training_run_at_its_limit() -> None:
    explanation = explained("recordings/oom_train")
    oom, fragmentation = explanation.oom, explanation.fragmentation
    assert oom is not None
    assert fragmentation is not None
    assert (oom.wall, oom.cause, oom.requested_bytes) == ("process_limit", "capacity", 256 * MIB)
    assert oom.place == Place("train/workloads.py", 59, "lm_loss")
    assert fragmentation.free_bytes == 194.25 * MIB
    assert fragmentation.largest_free_bytes == oom.largest_free_bytes == 16 * MIB
    assert oom.limit_bytes is None  # a snapshot does not hold it
    assert any("--log" in unknown for unknown in oom.unknowns)


def test_the_errors_text_makes_it_whole(tmp_path: Path) -> None:
    explanation = explained("recordings/oom_train", tmp_path)
    oom = explanation.oom
    assert oom is not None
    assert (oom.wall, oom.cause) == ("process_limit", "capacity")
    assert oom.limit_bytes == 3 * GIB
    assert oom.reserved_bytes is not None
    assert 3 * GIB - oom.reserved_bytes == 82 * MIB
    assert oom.short_by_bytes == (256 - 82) * MIB
    assert oom.free_bytes is not None
    assert oom.free_bytes // GIB == 131
    assert oom.unknowns == ()
    assert (
        expandable("recordings/oom_train", tmp_path) == "not a problem"
    )  # the limit is known: replay decides
    assert sum(row.bytes for row in explanation.ledger) == round(139.80 * GIB)


@pytest.mark.parametrize("name", CAPPED)
def test_the_limit_in_the_text_is_the_one_that_was_set(name: str, tmp_path: Path) -> None:
    oom, cap = verdict(name, tmp_path), truth_of(name)["cap_bytes"]
    assert oom.wall == "process_limit"
    assert oom.limit_bytes == cap
    assert oom.short_by_bytes == truth_of(name)["oom"]["requested"] - (
        cap - (oom.reserved_bytes or 0)
    )


def test_fragmentation() -> None:
    explanation = explained("recordings/oom_fragmented")
    oom, fragmentation = explanation.oom, explanation.fragmentation
    assert oom is not None
    assert fragmentation is not None
    assert (oom.wall, oom.cause, oom.requested_bytes) == (
        "process_limit",
        "fragmentation",
        600 * MIB,
    )
    assert (fragmentation.free_bytes, fragmentation.holes) == (1312 * MIB, 195)
    assert fragmentation.largest_free_bytes == oom.largest_free_bytes == 16 * MIB
    pin = fragmentation.pinned_by[0].place
    assert pin == Place("train/workloads.py", 251, "oom_fragmented")
    first, second = explanation.findings[:2]
    assert (first.id, second.id) == ("process_limit", "fragmented_request")
    assert "raise this process's limit, or remove it" in (first.fix or "")


def test_holes_of_one_size() -> None:
    oom = verdict("found/oom_holes")
    assert (oom.cause, oom.largest_free_bytes) == ("fragmentation", 192 * MIB)
    assert oom.headline == (
        "Out of memory: tried to allocate 600.00 MiB. PyTorch's cache had 1.31 GiB free, in blocks of at most 192.00 MiB. In one piece, that would be enough."
    )
    assert expandable("found/oom_holes") == "possible"


def test_a_leak_that_ran_into_the_limit() -> None:
    explanation = explained("recordings/oom_leak")
    assert explanation.oom is not None
    assert (explanation.oom.wall, explanation.oom.cause) == ("process_limit", "leak")
    assert explanation.findings[0].id == "leak"
    assert explanation.findings[0].place == Place("train/workloads.py", 268, "oom_leak")


@pytest.mark.parametrize("with_log", [False, True])
def test_a_batch_four_times_as_long_is_a_spike(with_log: bool, tmp_path: Path) -> None:
    oom = verdict("found/spike_oom", tmp_path if with_log else None)
    assert (oom.wall, oom.cause) == ("process_limit", "spike")


@pytest.mark.parametrize(
    ("name", "wall"),
    [("capacity_oom_device", "device"), ("capacity_oom_other_process", "other_process")],
)
def test_whose_memory_filled_the_device(name: str, wall: str, tmp_path: Path) -> None:
    explanation = explained(f"found/{name}", tmp_path)
    oom = explanation.oom
    assert oom is not None
    assert (oom.wall, oom.cause, oom.limit_bytes) == (wall, "capacity", None)
    assert oom.short_by_bytes == truth_of(f"found/{name}")["oom"]["requested"] - (
        oom.free_bytes or 0
    )
    others = sum(row.bytes for row in explanation.ledger if row.kind == "other_processes")
    held = truth_of(f"found/{name}")["facts"].get("other_process_bytes", 0)
    assert held <= others < held + GIB  # and that process's context


def test_without_the_text_nobody_is_accused() -> None:
    oom = verdict("found/capacity_oom_other_process")
    assert oom.wall == "device"
    assert any("who else used the device" in unknown for unknown in oom.unknowns)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("recordings/oom_train_expandable", "not a problem"),
        ("found/oom_expandable", "not a problem"),
        ("found/capacity_oom_device", "not a problem"),
        ("recordings/oom_leak", "not a problem"),
        ("recordings/oom_train", "not a problem"),
        ("recordings/oom_fragmented", "not a problem"),
    ],
)
def test_the_messages_hint(name: str, said: str) -> None:
    assert expandable(name) == said


def test_failures_that_were_caught() -> None:
    explanation = explained("found/oom_recovered")
    oom = explanation.oom
    assert oom is not None
    assert oom.survived
    assert oom.count == truth_of("found/oom_recovered")["stats"]["num_ooms"] == 2
    assert explanation.at == "peak"
    cudnn = verdict("found/oom_cudnn")
    assert cudnn.survived
    assert cudnn.count == truth_of("found/oom_cudnn")["stats"]["num_ooms"] == 6


@pytest.mark.parametrize("name", ["found/oom_recovered", "found/oom_cudnn", *CAPPED])
def test_a_shortage_told_without_the_text_is_the_true_one(name: str) -> None:
    oom, cap = verdict(name), truth_of(name)["cap_bytes"]
    if oom.short_by_bytes is not None:
        assert oom.short_by_bytes == (oom.reserved_bytes or 0) + (oom.tried_bytes or 0) - cap


@pytest.mark.parametrize(("once_reserved", "high"), [(20, 40 * MIB - 1), (60, None)])
def test_a_failure_below_what_was_once_reserved_bounds_nothing(
    once_reserved: int, high: int | None
) -> None:
    base = 1 << 30
    events = [
        event("segment_alloc", base, once_reserved * MIB),
        event("segment_free", base, once_reserved * MIB),
        event("segment_alloc", base, 20 * MIB),
        event("oom", 0, 20 * MIB, device_free=GIB),
    ]
    trace = read(pickle.dumps(snapshot(events, [])))
    failure = failure_of(attribute(trace, trace.devices[0]))
    assert failure is not None
    assert (failure.limit_low_bytes, failure.limit_high_bytes) == (once_reserved * MIB, high)


def test_no_failure_no_verdict() -> None:
    assert explained("recordings/gpt").oom is None
