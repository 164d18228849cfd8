"""The floor of a recording: what any allocator would have to reserve for its lifetimes."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from support.documents import print_answer
from support.recordings import DATA
from vramlens import load
from vramlens.replay import tune_trace
from vramlens.report.replay.json import tuning_to_json
from vramlens.units import GIB

FAILURES = DATA / "failures"


def floor_of(path: Path, cap_bytes: int | None = None) -> tuple[int, bool, str]:
    tuning = tune_trace(load(path), cap_bytes=cap_bytes, confs=("expandable_segments:True",))
    text = io.StringIO()
    print_answer(tuning, Console(file=text, width=100), all_rows=True)
    assert tuning_to_json(tuning)["floor_bytes"] == tuning.floor_bytes
    return tuning.floor_bytes, tuning.no_setting_can_help, text.getvalue()


def test_no_setting_reserves_less_than_the_floor() -> None:
    path = DATA / "recordings/gpt_varlen.pickle.xz"
    tuning = tune_trace(load(path))
    assert all(
        one.row.peak_reserved_bytes >= tuning.floor_bytes for one in tuning.tried if not one.row.oom
    )
    assert tuning.floor_bytes == load(path).devices[0].requested.peak_bytes


@pytest.mark.parametrize("name", ["gpt.cap90", "gpt.cap97"])
def test_a_failed_request_belongs_to_the_floor(name: str) -> None:
    path = FAILURES / f"{name}.vram"
    request = load(path).devices[0].out_of_memory[-1]
    floor, _, _ = floor_of(path)
    assert floor >= request.size_bytes + load(path).devices[0].requested_curve[request.event]


def test_above_the_limit_no_setting_can_help() -> None:
    floor, helpless, text = floor_of(DATA / "recordings/gpt_varlen.pickle.xz", cap_bytes=2 * GIB)
    assert floor > 2 * GIB
    assert helpless
    assert "That exceeds 2.00 GiB, so no setting can help." in " ".join(text.split())


def test_below_the_limit_it_is_only_told() -> None:
    _, helpless, text = floor_of(DATA / "recordings/gpt_varlen.pickle.xz", cap_bytes=8 * GIB)
    assert not helpless
    assert ", the peak of requested bytes." in " ".join(text.split())
