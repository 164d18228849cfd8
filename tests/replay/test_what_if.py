"""What-ifs against the same programs run under those settings and caps."""

from __future__ import annotations

import json
import statistics
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.recordings import DATA, data_of, read, truth_of
from vramlens import load
from vramlens.errors import InputError
from vramlens.replay import Proven, WhatIf, prove, replay_trace
from vramlens.replay.proof import ReserveLimit
from vramlens.replay.what_if import WhatIfQuestion, ask, question

TRUTHS = sorted(
    str(path.relative_to(DATA)).removesuffix(".json")
    for folder in ("other_settings", "capped")
    for path in (DATA / "replay" / folder).glob("*.json")
)


def workload_of(name: str) -> str:
    return name.rsplit("/", 1)[1].split("__")[0].split("_cap")[0]


@cache
def proven(workload: str) -> Proven:
    trace = read(data_of(f"recordings/{workload}"))
    assert trace.main_device is not None
    return prove(trace, trace.devices[trace.main_device])


def cap_of(truth: dict[str, Any]) -> int | None:
    total = truth["mem_get_info"][1]
    return int(truth["cap_gib"] * 2**30 / total * total) if truth.get("cap_gib") else None


@cache
def predicted(name: str) -> tuple[WhatIf, dict[str, Any]]:
    truth = json.loads((DATA / f"{name}.json").read_text())
    found = proven(workload_of(name))
    asked = question(found, truth["conf"], cap_of(truth))
    return ask(found, [asked])[0], truth


def is_equal(name: str) -> bool:
    row, truth = predicted(name)
    return row.peak_reserved_bytes == truth["stats"]["reserved_bytes.all.peak"]


@pytest.mark.parametrize("name", TRUTHS)
def test_the_truth_lies_in_the_printed_range(name: str) -> None:
    row, truth = predicted(name)
    assert row.low_bytes <= truth["stats"]["reserved_bytes.all.peak"] <= row.high_bytes
    if row.confidence == "exact":
        assert is_equal(name)


@pytest.mark.parametrize("name", [name for name in TRUTHS if "__c1" in name])
def test_expandable_segments_are_predicted_to_the_byte(name: str) -> None:
    row, truth = predicted(name)
    stats = truth["stats"]
    assert row.confidence == "exact"
    assert row.low_bytes == row.high_bytes == stats["reserved_bytes.all.peak"]
    assert row.peak_allocated_bytes == stats["allocated_bytes.all.peak"]
    assert row.retries == stats["num_alloc_retries"]


def test_most_are_equal_to_the_byte_and_ranges_are_narrow() -> None:
    lived = [name for name in TRUTHS if "oom_message" not in predicted(name)[1]]
    assert sum(map(is_equal, lived)) >= 0.85 * len(lived)
    widths = [
        (row.high_bytes - row.low_bytes) / row.peak_reserved_bytes
        for row in (predicted(name)[0] for name in TRUTHS)
        if row.confidence != "exact"
    ]
    assert statistics.median(widths) < 0.005


@pytest.mark.parametrize("name", TRUTHS)
def test_whether_the_program_lives_is_right_or_uncertain(name: str) -> None:
    row, truth = predicted(name)
    assert row.oom in (None, "oom_message" in truth)


@pytest.mark.parametrize(
    "conf", ["expandable_segments:True", "max_split_size_mb:32", "garbage_collection_threshold:0.6"]
)
def test_common_advice_does_not_help_oom_fragmented(conf: str) -> None:
    trace, truth = read(data_of("recordings/oom_fragmented")), truth_of("recordings/oom_fragmented")
    answer = replay_trace(trace, confs=[conf], recorded_cap_bytes=truth["oom"]["device_allocated"])
    assert answer.recorded.exact
    assert answer.ended_by_failure
    assert answer.what_if[0].oom is True


def test_expandable_segments_do_not_save_oom_train() -> None:
    trace, truth = (
        read(data_of("recordings/oom_train")),
        truth_of("recordings/oom_train_expandable"),
    )
    answer = replay_trace(
        trace,
        confs=["expandable_segments:True"],
        recorded_cap_bytes=truth["oom"]["device_allocated"],
    )
    row = answer.what_if[0]
    assert row.oom is True
    assert row.peak_reserved_bytes == truth["stats"]["reserved_bytes.all.peak"]


def test_the_recorded_settings_give_the_recorded_run() -> None:
    answer = replay_trace(read(data_of("recordings/gpt_varlen")))
    row = answer.what_if[0]
    assert (row.confidence, row.oom, row.why) == ("exact", False, ())
    assert (
        row.peak_reserved_bytes
        == row.low_bytes
        == row.high_bytes
        == answer.recorded.peak_reserved_bytes
    )


def test_getting_past_the_end_is_no_promise_to_live() -> None:
    truth = truth_of("recordings/oom_train")
    answer = replay_trace(
        read(data_of("recordings/oom_train")),
        confs=["expandable_segments:True"],
        cap_bytes=2**40,
        recorded_cap_bytes=truth["oom"]["device_allocated"],
    )
    row = answer.what_if[0]
    assert row.past_failure
    assert row.oom is None
    assert row.confidence == "conditional"


def test_a_cap_below_what_is_already_live_is_refused() -> None:
    trace = read(data_of("found/late_start"))
    found = prove(trace, trace.devices[0])
    assert found.recorded.warm
    with pytest.raises(InputError, match="already used"):
        question(found, "", 2**20)


def test_more_memory_never_reserves_less_than_the_unlimited_run_needs() -> None:
    found = proven("resnet50")
    settings = found.recorded.settings
    unlimited = ask(found, [WhatIfQuestion(settings, ReserveLimit())])[0]
    roomy = ask(
        found,
        [WhatIfQuestion(settings, ReserveLimit(unlimited.peak_reserved_bytes, source="given"))],
    )[0]
    assert roomy.retries == 0
    assert roomy.low_bytes <= unlimited.peak_reserved_bytes


def test_a_memory_fraction_is_a_limit(tmp_path: Path) -> None:
    conf, total = "per_process_memory_fraction:0.02", 150_109_880_320
    with pytest.raises(InputError, match="does not contain: leave it out and use --cap"):
        question(proven("resnet50"), conf)  # a bare snapshot
    path = tmp_path / "run.vram"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("snapshot.pickle", data_of("recordings/resnet50"))
        archive.writestr("meta.json", json.dumps({"torch": "2.11.0", "total_bytes": {"0": total}}))
    (row,) = load(path).replay(conf).what_if
    assert row.cap_bytes == round(0.02 * total)
    assert row.oom
    (row,) = load(path).replay("per_process_memory_fraction:1.0").what_if
    assert (row.cap_bytes, row.oom) == (None, False)
