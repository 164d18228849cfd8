"""What programs tell of their inside: written whole, gone at the end, and not to be forged by
others.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramlens.capture.recording.step_marks import StepCounter
from vramlens.capture.triggers import user_folder
from vramlens.monitor import publisher as publisher_module
from vramlens.monitor.machine import inside as module
from vramlens.monitor.machine.inside import (
    Inside,
    InsideDevice,
    inside_path,
    read_insides,
    start_of,
    write_inside,
)
from vramlens.monitor.publisher import Publisher

GIB = 1 << 30


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    own = user_folder.own_folder()
    os.mkdir(own, 0o700)
    return own


def mine(**others: Any) -> Inside:
    started = start_of(os.getpid())
    assert started is not None
    return Inside(os.getpid(), started, time.time_ns() // 1000, **others)


def put(folder: str, inside: Inside) -> str:
    path = inside_path(inside.pid, inside.started, folder)
    write_inside(path, inside)
    return path


def test_what_is_written_is_read(folder: str) -> None:
    told = mine(
        step=3,
        rank=1,
        program="train.py",
        devices=(InsideDevice(0, "GPU-a", 5 * GIB, 6 * GIB, growth_bytes=-4),),
    )
    path = put(folder, told)
    assert read_insides([folder]) == [told]
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.listdir(folder) == [os.path.basename(path)]


def test_start_is_told_apart_for_any_command_name(tmp_path: Path) -> None:
    import subprocess
    import sys

    script = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b') R 1 (x', 0, 0, 0); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        began = start_of(process.pid)
        assert began is not None
        assert began >= start_of(os.getpid())
        process.stdin.close()
    assert start_of(process.pid) is None


def test_a_process_that_has_ended_is_left_out(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Inside(2**22 - 1, 5, time.time_ns() // 1000)
    put(folder, gone)
    assert read_insides([folder]) == [
        replace(gone, is_here=False)
    ]  # it may run in another container
    put(folder, replace(gone, time_us=gone.time_us - 20_000_000))
    assert read_insides([folder]) == []


def test_a_folder_that_is_open_to_others_is_not_read(folder: str) -> None:
    put(folder, mine())
    os.chmod(folder, 0o755)
    assert read_insides([folder]) == []


def test_a_file_of_another_user_does_not_speak_for_a_process(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, mine())
    real = os.stat

    def owned_by_another(path: Any, *args: Any, **options: Any) -> Any:
        found = real(path, *args, **options)
        return (
            SimpleNamespace(st_uid=found.st_uid + 1)
            if str(path) == f"/proc/{os.getpid()}"
            else found
        )

    monkeypatch.setattr(module.os, "stat", owned_by_another)
    assert read_insides([folder]) == []


def test_a_link_is_not_followed(folder: str, tmp_path: Path) -> None:
    path = put(folder, mine())
    target = tmp_path / "elsewhere"
    os.rename(path, target)
    os.symlink(target, path)
    assert read_insides([folder]) == []


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "else"}, {"pid": 1}, {"pid": "x"}, {"started": True}, {"step": 1.5}, {"step": 1 << 70},
        {"devices": {}}, {"devices": [{"index": None}]}, {"devices": [{"index": 0, "uuid": 5}]},
        {"devices": [{"index": 0}] * 65}, {"program": "x" * 201}, {"devices": ["x"]}, {"time_us": None}, {"step": -1},
        {"devices": [{"index": 0, "allocated_bytes": -1}]},
    ],
)  # fmt: skip
def test_what_is_not_as_it_should_be_is_left_out(folder: str, change: dict[str, Any]) -> None:
    path = put(folder, mine(devices=(InsideDevice(0, "GPU-a"),)))
    content = json.loads(Path(path).read_text())
    Path(path).write_text(json.dumps({**content, **change}))
    assert read_insides([folder]) == []


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=300))
def test_any_bytes_are_no_harm(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    own = tmp_path_factory.mktemp("own")
    own.chmod(0o700)
    Path(inside_path(os.getpid(), start_of(os.getpid()) or 0, str(own))).write_bytes(data)
    assert read_insides([str(own)]) == []


def test_a_huge_file_and_a_pipe_are_left_out(folder: str) -> None:
    path = put(folder, mine())
    with open(path, "ab") as file:
        file.truncate(1 << 20)
    assert read_insides([folder]) == []
    os.unlink(path)
    os.mkfifo(path)
    assert read_insides([folder]) == []
    os.unlink(path)
    os.mkdir(path)
    open_before = len(os.listdir("/proc/self/fd"))
    assert read_insides([folder]) == []
    assert len(os.listdir("/proc/self/fd")) == open_before


def stats(allocated: int, reserved: int, peak: int) -> dict[str, Any]:
    return {
        "allocated_bytes": {"all": {"current": allocated, "peak": peak}},
        "reserved_bytes": {"all": {"current": reserved}},
        "num_alloc_retries": 2,
        "num_ooms": 1,
    }


class Cuda:
    """``torch.cuda`` of a program that uses one GPU."""

    def __init__(self) -> None:
        self.allocated = 4 * GIB
        self.asked: list[str] = []

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def memory_stats_as_nested_dict(self, device: int) -> dict[str, Any]:
        return stats(self.allocated, 20 * GIB, self.allocated + GIB)

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        raise AttributeError(name)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    fake = Cuda()
    monkeypatch.setattr(publisher_module, "cuda_in_use", lambda: fake)
    return fake


def test_a_program_tells_of_itself_and_falls_silent_at_the_end(folder: str, cuda: Cuda) -> None:
    steps = StepCounter()
    publisher = Publisher(steps, interval_s=0.01)
    publisher.start()
    publisher.start()
    for count in range(40):
        cuda.allocated += 5 << 20
        steps._ended(count + 1)
    last = cuda.allocated
    wait_for(
        lambda: (
            [(told.step, one.step_bytes) for told in read_insides([folder]) for one in told.devices]
            == [(40, last)]
        )
    )
    (told,) = read_insides([folder])
    (device,) = told.devices
    assert (told.pid, told.step) == (os.getpid(), 40)
    assert (device.allocated_bytes, device.reserved_bytes, device.retries, device.failures) == (
        cuda.allocated,
        20 * GIB,
        2,
        1,
    )
    assert device.growth_bytes == 5 << 20
    assert device.step_bytes == cuda.allocated
    publisher.stop()
    assert os.listdir(folder) == []


def wait_for(done: Callable[[], bool], within_s: float = 10.0) -> None:
    until = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_forked_child_leaves_its_parents_file(
    folder: str, cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = Publisher(interval_s=0.01)
    publisher.start()
    wait_for(lambda: bool(os.listdir(folder)))
    monkeypatch.setattr(publisher, "pid", os.getpid() + 1)  # as it is in a child
    publisher.stop()
    assert len(os.listdir(folder)) == 1
    monkeypatch.undo()
    publisher.pid = os.getpid()
    publisher.stop()


def test_a_forked_child_ends_although_the_parents_thread_is_not_in_it(
    folder: str, cuda: Cuda
) -> None:
    publisher = Publisher(interval_s=0.01)
    publisher.start()
    wait_for(lambda: bool(os.listdir(folder)))
    pid = os.fork()
    if pid == 0:
        signal.alarm(5)  # ends a child that waits for that thread
        publisher.stop()
        publisher.write()
        publisher.step_ended(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(read_insides([folder])) == 1
    publisher.stop()


def test_where_the_runtime_folder_is_not_there_it_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run" / "user" / "7"))
    monkeypatch.setattr(user_folder.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = user_folder.prepared_folder()
    assert folder == str(tmp_path / f"vramlens-{os.getuid()}")
    assert folder in user_folder.all_folders()
    assert os.listdir(tmp_path) == [os.path.basename(folder)]
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700


def test_a_program_that_moves_elsewhere_keeps_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", ".")
    assert user_folder.prepared_folder() == str(tmp_path / f"vramlens-{os.getuid()}")


def test_a_link_in_place_of_the_folder_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    os.symlink(tmp_path / "elsewhere", tmp_path / f"vramlens-{os.getuid()}")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(PermissionError):
        user_folder.prepared_folder()
    assert os.listdir(tmp_path / "elsewhere") == []


def test_a_link_in_place_of_the_file_is_not_written_through(folder: str, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    path = put(folder, mine())
    os.unlink(path)
    os.symlink(precious, path)
    os.symlink(precious, module.partial_path(path))
    with pytest.raises(OSError):
        write_inside(path, mine())
    os.unlink(module.partial_path(path))
    write_inside(path, mine())  # takes the link's place
    assert precious.read_text() == "mine"
    assert not os.path.islink(path)


def test_a_folder_that_is_open_to_others_is_not_written_to(
    folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vramlens.capture import warn

    monkeypatch.setattr(warn, "_said", set())
    os.chmod(folder, 0o777)
    Publisher().start()
    assert os.listdir(folder) == []
    assert "accessible to other users" in capsys.readouterr().err


def test_it_begins_when_the_gpu_is_first_used(
    folder: str, cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[Callable[[], None]] = []
    gpu = SimpleNamespace(kind="cuda", when_initialized=waiting.append)
    monkeypatch.setattr(publisher_module.torch_api, "connect", lambda: gpu)
    monkeypatch.setattr(publisher_module, "when_imported", lambda name, action: action())
    monkeypatch.setattr(publisher_module, "_published", None)
    publisher_module.publish_inside(StepCounter())
    publisher_module.publish_inside()
    assert len(waiting) == 1  # once, however often it is asked for
    assert os.listdir(folder) == []
    waiting[0]()
    wait_for(lambda: bool(read_insides([folder])))
    assert publisher_module._published is not None
    publisher_module._published.stop()
    assert os.listdir(folder) == []


def test_nothing_but_counters_is_asked_of_cuda(folder: str, cuda: Cuda) -> None:
    publisher = Publisher(StepCounter(), path=os.path.join(folder, "x.inside"))
    publisher.write()
    publisher.step_ended(1)
    assert cuda.asked == []
