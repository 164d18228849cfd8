"""The doctor's rows and verdict, with fakes for PyTorch, the driver and the GPU; no probe's
failure gets out.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import types
from dataclasses import replace
from typing import Any

import pytest

from vramlens.capture.doctor import diagnosis as doctor
from vramlens.capture.doctor import gpu_checks as doctor_gpu
from vramlens.capture.doctor import host_checks as doctor_host
from vramlens.capture.doctor import torch_checks as doctor_torch
from vramlens.capture.doctor.checks import STATES, DoctorCheck
from vramlens.capture.doctor.diagnosis import Diagnosis, diagnose
from vramlens.capture.doctor.gpu_evidence import GpuEvidence, has_kernels, selects_gpu
from vramlens.capture.doctor.switches import SWITCHES
from vramlens.capture.doctor.torch_checks import ChildAnswer, ask_torch, facts
from vramlens.capture.memory.driver import Gpu, GpuMemory
from vramlens.ground.conf_text import VARIABLES

FACTS: dict[str, Any] = {
    "version": "2.11.0+cu130",
    "release": [2, 11],
    "cuda": "13.0",
    "hip": None,
    "xpu": None,
    "kind": "cuda",
    "visible": 1,
    "archs": ["sm_80", "sm_90", "compute_120"],
    "backend": "native",
    "history": True,
    "skip_actions": True,
    "marks": True,
    "cheap_state": True,
    "pool_ids": False,
    "annotations": True,
    "observer": True,
    "kineto": True,
    "gpu_profiler": True,
    "nccl": [2, 28, 9],
    "nccl_memory": False,
    "distributed": True,
    "warnings": [],
}
CPU = {
    **FACTS,
    "version": "2.13.0+cpu",
    "cuda": None,
    "kind": None,
    "visible": 0,
    "backend": None,
    "nccl": None,
}
TRIAL = {
    "name": "NVIDIA H100",
    "events": 3,
    "python_stacks": True,
    "marks": True,
    "times": True,
    "observer": True,
    "seconds": 0.5,
}
PROBES = [
    *(
        (doctor_gpu, name)
        for name in ("torch", "gpu", "driver", "allocator", "settings", "snapshot", "trial")
    ),
    *((doctor_gpu, name) for name in ("profiler", "nvml", "nccl", "visible_devices", "switches")),
    *(
        (doctor_host, name)
        for name in ("python", "psutil", "memory", "shared_memory", "locked_memory", "disk")
    ),
    (doctor_host, "process_group"),
]


class FakeDriver:
    """Stands in for ``vramlens.capture.memory.driver.Driver``."""

    def __init__(self, count: int = 1, processes: tuple[Any, ...] | None = ()) -> None:
        self.count, self.processes = count, processes

    def version(self) -> str:
        return "580.1"

    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(Gpu(index, "NVIDIA H100", handle=index) for index in range(self.count))

    def memory(self, gpu: Gpu) -> GpuMemory:
        return GpuMemory(80 << 30, 79 << 30, None, self.processes)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for one in SWITCHES for name in (one.name, *one.older)]
    for name in [
        *names,
        *VARIABLES,
        "CUDA_VISIBLE_DEVICES",
        "RANK",
        "WORLD_SIZE",
        "SLURM_NTASKS",
        "PMI_RANK",
    ]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor_gpu, "driver_cuda", lambda: (13, 0))
    monkeypatch.setattr(doctor_gpu, "capability_of", lambda gpu: (9, 0))
    monkeypatch.setattr(doctor_gpu, "own_pids", lambda: ((1,), True))


def look(
    monkeypatch: pytest.MonkeyPatch, answer: ChildAnswer, nvml: Any = None, *, gpu: bool = False
) -> tuple[Diagnosis, dict[str, DoctorCheck]]:
    monkeypatch.setattr(doctor, "ask_torch", lambda gpu: answer)
    monkeypatch.setattr(
        doctor, "driver", lambda: (nvml, "" if nvml else "The NVIDIA driver does not answer.")
    )
    found = diagnose(gpu=gpu)
    for check in found.checks:
        assert check.state in STATES
        assert check.text.endswith((".", "?", ")"))
        assert "\n" not in check.text + check.do
    return found, {check.name: check for check in found.checks}


def seen(answer: ChildAnswer, nvml: Any = None) -> GpuEvidence:
    return GpuEvidence(answer, nvml, "", nvml.gpus() if nvml else ())


def test_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    found, rows = look(monkeypatch, ChildAnswer(FACTS, TRIAL), FakeDriver(), gpu=True)
    assert found.verdict == "Ready to record on 1 GPU (NVIDIA H100, torch 2.11.0+cu130)."
    assert found.ready is True
    assert {
        rows[name].state
        for name in ("torch", "gpu", "driver", "allocator", "snapshot", "trial", "nvml")
    } == {"ok"}
    assert rows["trial"].text == "3 events recorded in 0.5 s, with stacks, times, marks, failures."
    data = found.to_dict()
    assert list(data) == ["verdict", "ready", "checks", "switches", "distributed"]
    assert set(data["checks"][0]) == {"name", "state", "text", "do"}


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    found, rows = look(monkeypatch, ChildAnswer(CPU))
    assert (found.verdict, found.ready) == (
        "There is no GPU here: recordings can be read but not made.",
        False,
    )
    assert not {"allocator", "snapshot", "nccl", "driver"} & set(rows)


def test_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    found, rows = look(monkeypatch, ChildAnswer(missing=True, failure="ModuleNotFoundError: torch"))
    assert (found.verdict, found.ready) == (
        "PyTorch is not installed here: recordings can be read but not made.",
        False,
    )
    assert {"python", "host memory", "disk", "settings", "nvml"} <= set(rows)


def test_torch_that_does_not_import(monkeypatch: pytest.MonkeyPatch) -> None:
    found, rows = look(
        monkeypatch, ChildAnswer(failure="ImportError: libcudart.so.13: cannot open"), FakeDriver()
    )
    assert found.verdict == "Not ready to record: PyTorch cannot be imported."
    assert "libcudart" in rows["torch"].text
    assert rows["gpu"].state == "unknown"


@pytest.mark.parametrize(
    ("change", "environment", "row", "words"),
    [
        ({"kind": None, "visible": 0}, {}, "gpu", "built for the CPU"),
        ({"visible": 0, "warnings": ["The driver is too old"]}, {}, "gpu", "too old"),
        ({"visible": 0}, {"CUDA_VISIBLE_DEVICES": "-1"}, "gpu", "hides every GPU"),
        ({"archs": ["sm_50", "sm_100"]}, {}, "gpu", "no kernels for NVIDIA H100 (sm_90)"),
        ({"cuda": "14.1", "visible": 0}, {}, "driver", "too old for this PyTorch's CUDA 14.1"),
        ({"backend": "cudaMallocAsync"}, {}, "allocator", "has no memory history"),
        ({"backend": "pluggable"}, {}, "allocator", "has no memory history"),
        ({}, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "0"}, "allocator", "any value counts"),
        ({}, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:true"}, "settings", "capital"),
        ({"history": False}, {}, "snapshot", "cannot record"),
    ],
)
def test_what_stands_in_the_way(
    change: dict[str, Any],
    environment: dict[str, str],
    row: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found, rows = look(monkeypatch, ChildAnswer({**FACTS, **change}), FakeDriver())
    assert found.ready is False
    assert found.verdict.startswith("Not ready to record: ")
    assert rows[row].state == "problem"
    assert words in rows[row].text
    assert rows[row].do


@pytest.mark.parametrize(
    ("change", "environment", "row", "words"),
    [
        ({"release": [2, 3], "version": "2.3.0"}, {}, "torch", "2.3.0"),
        ({"marks": False}, {}, "snapshot", "lacks module marks (2.10)"),
        ({"gpu_profiler": False}, {}, "profiler", "CUPTI"),
        ({"kineto": False}, {}, "profiler", "no Kineto"),
        ({"nccl": None}, {}, "nccl", "no NCCL"),
        ({}, {"CUDA_LAUNCH_BLOCKING": "1"}, "switches", "CUDA_LAUNCH_BLOCKING=1"),
        ({}, {"CUDA_MODULE_LOADING": "EAGER"}, "switches", "larger CUDA context"),
        (
            {},
            {"PYTORCH_ALLOC_CONF": "a:1", "PYTORCH_CUDA_ALLOC_CONF": ""},
            "settings",
            "both set to different values",
        ),
    ],
)
def test_what_is_worth_knowing(
    change: dict[str, Any],
    environment: dict[str, str],
    row: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found, rows = look(monkeypatch, ChildAnswer({**FACTS, **change}), FakeDriver())
    assert found.ready is True
    assert rows[row].state == "note"
    assert words in rows[row].text


def test_harmless_values_are_no_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-abc,1")
    rows = look(monkeypatch, ChildAnswer(FACTS), FakeDriver())[1]
    assert rows["switches"].state == rows["visible devices"].state == "ok"


def test_settings_that_end_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb=40")
    answer = ChildAnswer(
        FACTS, failure="importing torch ended the process with code -6", settings_failed=True
    )
    rows = look(monkeypatch, answer, FakeDriver(), gpu=True)[1]
    assert "cannot be imported" in rows["settings"].text
    assert rows["torch"].state == "ok"
    assert "trial" not in rows
    monkeypatch.setenv(
        "PYTORCH_ALLOC_CONF", "max_split_size_mb:40"
    )  # nothing that we know to be wrong
    assert look(monkeypatch, answer, FakeDriver())[1]["settings"].state == "problem"


def test_nccl_memory_needs_both(monkeypatch: pytest.MonkeyPatch) -> None:
    text = look(
        monkeypatch, ChildAnswer({**FACTS, "nccl": [2, 29, 7], "nccl_memory": True}), FakeDriver()
    )[1]["nccl"].text
    assert text.endswith("its memory can be read.")
    assert (
        "from 2.29.7 on"
        in look(monkeypatch, ChildAnswer({**FACTS, "nccl_memory": True}))[1]["nccl"].text
    )
    assert (
        "2.12 can" in look(monkeypatch, ChildAnswer({**FACTS, "nccl": [2, 29, 7]}))[1]["nccl"].text
    )


def test_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "other processes" in look(monkeypatch, ChildAnswer(FACTS))[1]["nvml"].text
    assert (
        "not which processes use it"
        in look(monkeypatch, ChildAnswer(FACTS), FakeDriver(processes=None))[1]["nvml"].text
    )
    monkeypatch.setattr(doctor_gpu, "own_pids", lambda: ((7,), False))
    assert "inferred" in look(monkeypatch, ChildAnswer(FACTS), FakeDriver())[1]["nvml"].do
    assert "nvml" not in look(monkeypatch, ChildAnswer({**FACTS, "hip": "6.2", "cuda": None}))[1]


def test_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = ChildAnswer(FACTS, failure=f"{doctor_torch.DIED} took more than 180 seconds")
    row = look(monkeypatch, lost, FakeDriver(), gpu=True)[1]["trial"]
    assert (row.state, "nvidia-smi" in row.do) == ("problem", True)
    refused = ChildAnswer(FACTS, failure="RuntimeError: no history")
    assert look(monkeypatch, refused, FakeDriver(), gpu=True)[1]["trial"].do == ""
    deaf = ChildAnswer(FACTS, {**TRIAL, "observer": False})
    assert "without failures" in look(monkeypatch, deaf, FakeDriver(), gpu=True)[1]["trial"].text
    empty = ChildAnswer(FACTS, {**TRIAL, "events": 0})
    assert look(monkeypatch, empty, FakeDriver(), gpu=True)[1]["trial"].state == "problem"


@pytest.mark.parametrize(
    ("module", "name"), PROBES, ids=lambda part: getattr(part, "__name__", part)
)
def test_a_probe_that_raises_is_one_row(
    module: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("it is broken\nin two lines")

    monkeypatch.setattr(module, name, broken)
    found, _ = look(monkeypatch, ChildAnswer(FACTS, TRIAL), FakeDriver(), gpu=True)
    rows = [check for check in found.checks if "it is broken" in check.text]
    assert [row.state for row in rows] == ["unknown"]
    assert rows[0].name == {"memory": "host memory"}.get(name, name.replace("_", " "))


def test_every_probe_is_among_those_that_are_broken_above() -> None:
    rows = doctor._probes(seen(ChildAnswer(FACTS)), doctor.distributed_state({}), True)
    assert len(rows) == len(PROBES)


@pytest.mark.parametrize("name", ["ask_torch", "driver"])
def test_sources_that_raise(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("gone")

    monkeypatch.setattr(doctor, "ask_torch", lambda gpu: ChildAnswer(FACTS))
    monkeypatch.setattr(doctor, "driver", lambda: (None, "No driver."))
    monkeypatch.setattr(doctor, name, broken)
    assert diagnose().verdict


class BrokenDriver(FakeDriver):
    def __getattribute__(self, name: str) -> Any:
        if name in ("version", "memory"):
            raise RuntimeError("scrambled")
        return super().__getattribute__(name)


def test_a_driver_that_breaks_later(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = look(monkeypatch, ChildAnswer(FACTS), BrokenDriver())[1]
    assert rows["driver"].state == rows["nvml"].state == "unknown"


@pytest.mark.parametrize("gone", sorted(FACTS))
def test_a_fact_that_is_missing(gone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, rows = look(monkeypatch, ChildAnswer({**FACTS, gone: None}), FakeDriver())
    assert found.verdict
    assert not [row for row in rows.values() if "check failed" in row.text]


@pytest.mark.parametrize(
    ("archs", "capability", "fits"),
    [
        (["sm_80"], (8, 6), True),
        (["sm_86"], (8, 0), False),
        (["sm_90a"], (9, 0), True),
        (["compute_80"], (12, 0), True),
        (["sm_80", "sm_90"], (12, 0), False),
        (["gfx90a"], (9, 0), True),
        (["sm_100"], (10, 3), True),
    ],
)
def test_kernels(archs: list[str], capability: tuple[int, int], fits: bool) -> None:
    assert has_kernels(archs, capability) is fits


@pytest.mark.parametrize(
    ("given", "selects"), [("0", True), (" +1", True), ("GPU-a", True), ("", False), ("-1", False)]
)
def test_visible_devices(given: str, selects: bool) -> None:
    assert selects_gpu(given) is selects


def test_visible_devices_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setattr(doctor_gpu, "driver_count", lambda: 1)
    row = look(monkeypatch, ChildAnswer({**FACTS, "visible": 0}), FakeDriver(0))[1]["gpu"]
    assert (row.state, row.text) == (
        "problem",
        "CUDA_VISIBLE_DEVICES='7' selects none of the 1 here.",
    )


def test_an_old_driver_with_a_compatibility_package(monkeypatch: pytest.MonkeyPatch) -> None:
    row = look(monkeypatch, ChildAnswer({**FACTS, "cuda": "14.0"}), FakeDriver())[1]["driver"]
    assert (row.state, "forward compatibility" in row.text) == ("ok", True)


# The host


def test_little_shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(doctor_host, "_SHARED", str(tmp_path))
    monkeypatch.setattr(
        doctor_host.shutil,
        "disk_usage",
        lambda _: types.SimpleNamespace(total=64 << 20, free=60 << 20),
    )
    row = doctor_host.shared_memory()
    assert row is not None
    assert (row.state, "--shm-size" in row.do) == ("note", True)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    tmp_path.chmod(0o500)
    monkeypatch.chdir(tmp_path)
    assert doctor_host.disk().state == "problem"


def test_a_folder_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor_host.tempfile, "TemporaryFile", refuse)
    row = doctor_host.disk()
    assert (row.state, "permission denied" in row.text, "-o FOLDER" in row.do) == (
        "problem",
        True,
        True,
    )


def test_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "TORCHELASTIC_RUN_ID": "x",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
    }.items():
        monkeypatch.setenv(name, value)
    found, rows = look(monkeypatch, ChildAnswer(FACTS), FakeDriver())
    assert found.distributed.launcher == "torchrun"
    assert "vramlens.distributed_state()" in rows["process group"].do
    shared = replace(found.distributed, duplicate_device=True, initialized=True)
    row = doctor_host.process_group(shared)
    assert row is not None
    assert (row.state, "set_device(1)" in row.do) == ("problem", True)


# The child


def fake_torch() -> types.SimpleNamespace:
    """As much of a CUDA build of torch as ``facts`` asks for; nothing of it makes a context."""
    memory = types.SimpleNamespace(
        get_allocator_backend=lambda: "native",
        _record_memory_history=lambda enabled, skip_actions=None: None,
        memory_snapshot=lambda mempool_id=None, include_traces=True: [],
        _snapshot=dict,
    )
    cuda = types.SimpleNamespace(
        memory=memory,
        is_available=lambda: True,
        device_count=lambda: 2,
        nccl=types.SimpleNamespace(version=lambda: (2, 29, 7)),
    )
    c_module = types.SimpleNamespace(
        _cuda_memorySnapshot=None,
        _cuda_setMemoryMetadata=None,
        _cuda_attach_out_of_memory_observer=None,
        _cuda_getArchFlags=lambda: "sm_80 sm_90",
        _distributed_c10d=types.SimpleNamespace(Backend=types.SimpleNamespace(memory_stats=None)),
    )
    profiler = types.SimpleNamespace(
        kineto_available=lambda: True, supported_activities=lambda: {"ProfilerActivity.CUDA"}
    )
    return types.SimpleNamespace(
        __version__="2.12.1",
        version=types.SimpleNamespace(cuda="13.0", hip=None, xpu=None),
        cuda=cuda,
        _C=c_module,
        profiler=profiler,
        distributed=types.SimpleNamespace(is_available=lambda: True),
    )


def test_facts_of_a_cuda_build() -> None:
    found = facts(fake_torch())
    assert (found["kind"], found["visible"], found["release"], found["backend"]) == (
        "cuda",
        2,
        [2, 12],
        "native",
    )
    assert all(found[name] for name in ("skip_actions", "cheap_state", "marks", "observer"))
    assert (found["nccl"], found["nccl_memory"], found["gpu_profiler"]) == ([2, 29, 7], True, True)


@pytest.mark.parametrize(
    "part", ["version", "cuda", "_C", "profiler", "distributed", "__version__"]
)
def test_facts_of_a_broken_torch(part: str) -> None:
    torch = fake_torch()
    delattr(torch, part)
    assert set(facts(torch)) == set(facts(fake_torch()))


@pytest.mark.parametrize("name", ["is_available", "device_count"])
def test_facts_where_cuda_raises(name: str) -> None:
    def broken() -> None:
        raise RuntimeError("driver")

    torch = fake_torch()
    setattr(torch.cuda, name, broken)
    assert facts(torch)["visible"] is None


def test_facts_of_an_xpu_build() -> None:
    torch = types.SimpleNamespace(
        __version__="2.13.0+xpu",
        _C=types.SimpleNamespace(_xpu_recordMemoryHistory=None),
        xpu=types.SimpleNamespace(is_available=lambda: True, device_count=lambda: 1),
    )
    assert (facts(torch)["kind"], facts(torch)["visible"]) == ("xpu", 1)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import time; time.sleep(60)", "importing torch took more than 0.5 seconds"),
        ("import os; os.abort()", "ended the process with code"),
        ("import sys; sys.exit('some error: lost')", "some error: lost"),
        ("print('vramlens-doctor {broken')", "ended the process with code 0"),
        (
            'print(\'vramlens-doctor {"facts": {"visible": 1}}\', flush=True); import os; os.abort()',
            doctor_torch.DIED,
        ),
    ],
)
def test_a_child_that_is_lost(code: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_torch, "_CODE", code)
    limit = 0.5 if "sleep" in code else 30.0
    answer = ask_torch(gpu=True, limit_s=limit)
    assert words in answer.failure
    assert answer.trial is None


def test_settings_are_left_out_in_a_second_try(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import os, sys\n"
        "if 'PYTORCH_ALLOC_CONF' in os.environ: sys.exit('some error')\n"
        'print(\'vramlens-doctor {"facts": {"version": "2.11"}}\')'
    )
    monkeypatch.setattr(doctor_torch, "_CODE", code)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "x")
    answer = ask_torch(limit_s=30.0)
    assert answer.settings_failed
    assert answer.facts == {"version": "2.11"}
    assert "some error" in answer.failure


def test_no_torch_in_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys; sys.modules['torch'] = None; " + doctor_torch._CODE
    monkeypatch.setattr(doctor_torch, "_CODE", code)
    answer = ask_torch(limit_s=60.0)
    assert answer.facts is None
    assert answer.missing


def test_no_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    assert ask_torch().failure
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "could not be started" in ask_torch().failure


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_the_real_torch() -> None:
    answer = ask_torch()
    assert answer.facts is not None, answer.failure
    assert answer.facts["history"] in (True, False)
    assert answer.failure == ""


def test_modules_of_the_present_folder_are_not_run(tmp_path):
    """``vramlens doctor`` in a checkout that somebody else made."""
    for name in ("json", "torch", "contextlib", "numpy", "vramlens"):
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'was-run')!r}, 'a').write({name!r})\n"
        )
    code = "import sys; sys.path[:1] = []; from vramlens.cli.main import main; sys.exit(main(sys.argv[1:]))"
    paths = os.pathsep.join(path for path in sys.path if path)
    surroundings = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, "-c", code, "doctor"]
    done = subprocess.run(command, cwd=tmp_path, env=surroundings, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "was-run").exists()
