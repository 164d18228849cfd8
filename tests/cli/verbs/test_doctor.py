"""``vramlens doctor`` as a person sees it."""

from __future__ import annotations

import argparse
import io
import json
from typing import Any

import pytest

from vramlens.capture.doctor import diagnosis as capture_doctor
from vramlens.capture.doctor.checks import DoctorCheck
from vramlens.capture.doctor.diagnosis import Diagnosis
from vramlens.capture.doctor.nccl_check import check_collectives
from vramlens.capture.doctor.switches import SWITCHES
from vramlens.capture.process_group import distributed_state
from vramlens.cli.verbs.running import doctor


def call(*words: str) -> int:
    parser = argparse.ArgumentParser()
    doctor.prepare_parser(parser)
    return doctor.run(parser.parse_args(words))


def diagnosis(*checks: DoctorCheck, ready: bool | None = True) -> Diagnosis:
    return Diagnosis(
        "Ready to record on 1 GPU (NVIDIA H100, torch 2.11.0).",
        ready,
        checks,
        distributed_state({}),
    )


def plug(monkeypatch: pytest.MonkeyPatch, found: Diagnosis) -> list[Any]:
    asked: list[Any] = []

    def diagnose(**options: Any) -> Diagnosis:
        asked.append(options)
        return found

    monkeypatch.setattr(capture_doctor, "diagnose", diagnose)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    return asked


GOOD = tuple(
    DoctorCheck(f"check {number}", "ok", f"All is well with number {number}.")
    for number in range(14)
)
BAD = DoctorCheck(
    "driver",
    "problem",
    "Driver 1: too old for this PyTorch's CUDA 13.0. " * 2,
    "Update the driver.",
)
NOTE = DoctorCheck(
    "nvml",
    "note",
    "The driver uses the host's process numbers, and this container uses different ones.",
    "Nothing.",
)


def test_the_verdict_comes_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = plug(monkeypatch, diagnosis(*GOOD))
    assert call() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Ready to record on 1 GPU (NVIDIA H100, torch 2.11.0)."
    assert lines[-2:] == ["Next, record your program:", "  vramlens run train.py"]
    assert asked[0]["gpu"] is False
    call("--gpu")
    assert asked[1]["gpu"] is True


def test_collectives_that_need_more_gpus_name_the_node_to_run_on():
    alone = check_collectives(1)
    assert doctor._collectives(alone, 80)[-1] == "Next, run it on a node with two GPUs or more."


@pytest.mark.parametrize("bad", range(12))
@pytest.mark.parametrize("notes", [0, 3, 12])
def test_it_fits_a_screen(
    bad: int, notes: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plug(monkeypatch, diagnosis(*GOOD, *[NOTE] * notes, *[BAD] * bad, ready=not bad))
    call()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    if bad:
        assert lines[2].startswith("problem  driver")
        assert lines[-2].startswith("Next, ")


def test_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    plug(monkeypatch, diagnosis(BAD, ready=False))
    assert call("--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "vramlens/1"
    assert data["checks"][0]["name"] == "driver"
    assert len(data["switches"]) == len(SWITCHES)
    assert data["distributed"]["launcher"] == "none"


def test_switches_need_no_look(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = plug(monkeypatch, diagnosis())
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    assert call("--switches") == 0
    assert asked == []
    out = capsys.readouterr().out
    assert all(f"{one.name}={one.value}" in out for one in SWITCHES)
    assert "set: NCCL_DEBUG=INFO" in out
    call("--switches", "--gpu")
    assert "Debug switches" in capsys.readouterr().out
    assert asked


def test_a_terminal_with_more_lines_gets_more(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("LINES", "50")
    monkeypatch.setattr(doctor.sys, "stdout", Terminal())
    assert doctor._height() == 49


def test_the_native_core(monkeypatch: pytest.MonkeyPatch) -> None:
    from vramlens import _native

    assert doctor._native_core().state == "ok"

    def gone() -> None:
        raise OSError("libvramlens.so: cannot open")

    monkeypatch.setattr(_native, "_core", gone)
    assert doctor._native_core().state == "problem"


def test_the_real_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert lines[0].startswith(
        ("Ready", "Not ready", "No GPU", "PyTorch is not installed", "There is no GPU")
    )
