"""Failures of which little is recorded: what cannot be projected says so, and nothing is promised."""

from __future__ import annotations

import pytest

from support.recordings import DATA
from vramlens import load
from vramlens.analyses.explanation import Explanation
from vramlens.analyses.failure.need import ADVICE

FAILED = {
    "found/first_step_oom.pickle.xz": "within the first step, without module marks",
    "found/optimizer_oom.pickle.xz": "inside the first optimizer step",
    "found/oom_wrapped.pickle.xz": "the ring wrapped: the beginning is overwritten",
    "found/oom_cudnn.pickle.xz": "cuDNN's trials fail and are caught",
    "found/capacity_oom_device.pickle.xz": "limited by the device",
    "found/capacity_oom_other_process.pickle.xz": "limited by another process",
    "found/oom_expandable.pickle.xz": "limited by a fraction, under expandable segments",
    "captured/oom_backward.vram": "inside backward",
    "captured/oom_compiled.vram": "inside a compiled region",
    "captured/oom_forward.vram": "in the first forward pass",
    "captured/oom_really_full.vram": "a full card",
}


def explained(name: str) -> Explanation:
    return load(DATA / name).explain()


@pytest.mark.parametrize("name", FAILED, ids=FAILED.get)
def test_nothing_is_told_beyond_what_is_known(name: str) -> None:
    oom = explained(name).oom
    assert oom is not None
    need = oom.need
    assert need is not None
    assert [row.conf for row in oom.settings[: len(ADVICE)]] == list(ADVICE)
    assert oom.headline.startswith("Out of memory: tried to allocate ")
    if need.basis is None:
        assert (need.peak_reserved_bytes, need.high_bytes) == (None, None)
        assert not any(row.lives for row in oom.settings)
    if need.basis == "blocks":
        assert need.peak_reserved_bytes is None
        assert need.high_bytes is not None
    if need.high_bytes is not None:
        assert need.low_bytes <= (need.peak_reserved_bytes or need.high_bytes) <= need.high_bytes


@pytest.mark.parametrize("name", ["found/optimizer_oom.pickle.xz", "captured/oom_backward.vram"])
def test_no_setting_is_advised_as_sure_where_the_rest_is_unknown(name: str) -> None:
    found = explained(name)
    assert not any(one.id == "settings_help" for one in found.findings)


def test_of_several_failures_the_last_counts() -> None:
    recording = load(DATA / "failures/resnet50.cap70.vram")
    oom = recording.explain().oom
    assert oom is not None
    (device,) = recording.devices.values()
    assert oom.event == device.out_of_memory[-1].event
    assert oom.count == len(device.out_of_memory) > 1


def test_a_failure_that_was_survived_ends_nothing() -> None:
    found = explained("found/oom_recovered.pickle.xz")
    assert found.oom is not None
    assert found.oom.survived
    assert not any(one.id in ("settings_help", "smaller_batch") for one in found.findings)


def test_a_run_that_went_on_is_its_own_need() -> None:
    recovered = explained("found/oom_recovered.pickle.xz")
    assert recovered.oom is not None
    assert recovered.peak is not None
    need = recovered.oom.need
    assert need is not None
    assert need.basis == "whole_run"
    assert need.peak_reserved_bytes is not None
    assert need.high_bytes is not None
    assert need.floor_bytes is not None
    assert need.floor_bytes <= need.low_bytes <= need.peak_reserved_bytes <= need.high_bytes
    # What was refused has to fit beside what was there.
    assert recovered.oom.requested_bytes is not None
    assert need.high_bytes > recovered.peak.reserved_bytes
    expandable, *_ = recovered.oom.settings
    assert expandable.lives is not None
