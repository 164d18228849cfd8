"""Recordings that ``vramlens run`` made on real GPUs (tests/capture/gpu_programs.py), against
what they must tell.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

import vramlens
from vramlens.cli.main import main

CAPTURED = Path(__file__).parents[2] / "data" / "captured"
ALL = sorted(path.stem for path in CAPTURED.glob("*.vram"))
TRAINED = ("gpt", "checkpointed", "ddp-rank0", "ddp-rank1", "fsdp2-rank0", "fsdp2-rank1")


def part(name: str, member: str) -> Any:
    with zipfile.ZipFile(CAPTURED / f"{name}.vram") as archive:
        return json.loads(archive.read(member))


@pytest.mark.parametrize("name", ALL)
def test_all_four_peaks_are_the_allocators_own(name: str) -> None:
    recording = vramlens.load(CAPTURED / f"{name}.vram")
    found = recording.explain()
    assert found.peak is not None
    stats = part(name, "meta.json")["devices"][str(found.peak.device)]["stats"]
    if name != "steps":  # began at the second step: the peak before it is not in it
        assert found.peak.requested_bytes == stats["requested_bytes.all.peak"]
        assert found.peak.allocated_bytes == stats["allocated_bytes.all.peak"]
        assert found.peak.active_bytes == stats["active_bytes.all.peak"]
        assert found.peak.reserved_bytes == stats["reserved_bytes.all.peak"]
    assert recording.missing == () or name == "steps"
    assert (found.oom is not None) == bool(stats["num_ooms"])


@pytest.mark.parametrize("name", ALL)
def test_the_ledger_closes_within_a_percent(name: str) -> None:
    ledgers = part(name, "ledger.json")
    assert {"start", "peak", "end"} <= set(ledgers)
    for moment, ledger in ledgers.items():
        for device in ledger["devices"].values():
            rows = {row["kind"]: row["bytes"] for row in device["rows"]}
            assert sum(rows.values()) == device["total_bytes"]
            assert rows.get("unknown", 0) < 0.01 * device["total_bytes"]
            assert rows["other_processes"] == 0
            assert moment != "end" or 200 << 20 < rows["this_process_other"] < 2 << 30


@pytest.mark.parametrize("name", TRAINED)
def test_every_byte_at_the_peak_is_named(name: str) -> None:
    peak = vramlens.load(CAPTURED / f"{name}.vram").peak()
    assert peak.named_bytes >= 0.99 * peak.requested_bytes
    assert peak.by_category["parameters"].verdict == "proven"
    assert peak.by_category["optimizer_state"].verdict == "proven"


@pytest.mark.parametrize(("name", "shard"), [("gpt", 1), ("ddp-rank1", 1), ("fsdp2-rank0", 2)])
def test_parameters_and_optimizer_state_are_those_of_the_model(name: str, shard: int) -> None:
    width, layers = 512, 6
    block = (
        3 * width * width
        + 3 * width
        + width * width
        + width
        + 2 * (4 * width * width)
        + 5 * width
        + 2 * width
    )
    model_bytes = 4 * (2 * 8192 * width + layers * block)
    peak = vramlens.load(CAPTURED / f"{name}.vram").peak()
    assert peak.by_category["parameters"].bytes * shard == pytest.approx(model_bytes, rel=0.001)
    assert peak.by_category["optimizer_state"].bytes * shard == pytest.approx(
        2 * model_bytes, rel=0.001
    )


def test_lightning_runs_the_step_inside_of_the_optimizer_and_is_seen_through() -> None:
    by_hand, lightning = (
        vramlens.load(CAPTURED / f"{name}.vram").peak().by_category for name in ("gpt", "lightning")
    )
    assert {name: held.bytes for name, held in lightning.items()} == pytest.approx(
        {name: held.bytes for name, held in by_hand.items()}, rel=0.01
    )


@pytest.mark.parametrize("name", ["gpt", "checkpointed", "ddp-rank0", "lightning"])
def test_layers_that_are_alike_hold_alike(name: str) -> None:
    by_module = vramlens.load(CAPTURED / f"{name}.vram").peak().by_module
    layers = [
        sum(size for path, size in by_module.items() if f".blocks.{number}." in f"{path}.")
        for number in range(1, 5)
    ]
    assert max(layers) > 0
    assert max(layers) <= 1.2 * min(layers)


def test_backward_carries_the_module_as_forward_does() -> None:
    recording = vramlens.load(CAPTURED / "gpt.vram")
    device = recording.devices[0]
    texts = recording.stacks.strings
    without_frames = ~recording.stacks.has_python[device.events.stack]
    backward = {texts[i] for i in device.events.user_metadata[without_frames].tolist()}
    assert {
        f"model.blocks.{n}.{part}"
        for n in range(6)
        for part in ("qkv", "proj", "up", "down", "norm")
    } <= backward


@pytest.mark.parametrize(
    ("name", "wall"),
    [("oom_forward", "process_limit"), ("oom_backward", "process_limit"), ("oom_compiled", "process_limit"),
     ("oom_really_full", "device")],
)  # fmt: skip
def test_failures_need_no_log(name: str, wall: str) -> None:
    oom = vramlens.load(CAPTURED / f"{name}.vram").oom()
    assert oom is not None
    assert (oom.wall, oom.cause) == (wall, "capacity")
    assert (oom.limit_bytes is not None) == (wall == "process_limit")
    assert oom.place is not None
    assert oom.place.file.endswith("programs.py")


def test_evaluation_with_gradients_is_proven() -> None:
    (finding,) = [
        f
        for f in vramlens.load(CAPTURED / "eval_with_grad.vram").explain().findings
        if f.id == "eval_with_grad"
    ]
    assert finding.verdict == "proven"
    assert finding.bytes == pytest.approx(1.5 * 2**30, rel=0.05)


def test_the_verb_speaks_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ALL:
        assert main(["explain", str(CAPTURED / f"{name}.vram"), "--by", "module"]) == 0
        assert main(["explain", str(CAPTURED / f"{name}.vram"), "--json"]) == 0
    assert "Recorded on NVIDIA H200, torch 2.11.0+cu130, rank 1 of 2" in capsys.readouterr().out


def test_a_real_trace_of_the_profiler(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(CAPTURED.parent / "profiler" / "gpt_gpu.json.gz"), "--json"]) == 0
    profile = json.loads(capsys.readouterr().out)["profile"]
    (gpu,) = (memory for memory in profile["memory"] if memory["device"] == "cuda:0")
    assert (
        gpu["allocated_bytes"] == 1720300544
    )  # torch.cuda.max_memory_allocated(), printed by the program
    assert gpu["exact"] == ["allocated_bytes", "reserved_bytes"]
    assert [step["number"] for step in profile["steps"]] == [1, 2]
    assert 0.4 < profile["devices"][0]["busy_share"] < 0.6
