"""The machine as the driver shows it: divided GPUs, MPS, containers, missing permissions,
failures half-way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.fake_nvml import (
    GIB,
    GPU_IS_LOST,
    MIB,
    SHAPES,
    FakeNvml,
    Gpu,
    divided,
    half_lost,
    in_container,
    plug_in,
    several,
    shared_by_mps,
    uuid_of,
    without_permission,
    without_sizes,
)
from vramlens.capture.memory import driver
from vramlens.capture.memory.driver import GpuProcess
from vramlens.monitor.machine import machine as machine_module
from vramlens.monitor.machine.host_processes import HostProcess, HostProcesses
from vramlens.monitor.machine.inside import (
    Inside,
    InsideDevice,
    inside_path,
    start_of,
    write_inside,
)
from vramlens.monitor.machine.kinds import KINDS
from vramlens.monitor.machine.machine import DeviceNow, Machine, MachineNow
from vramlens.monitor.machine.process_matching import match


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[FakeNvml], FakeNvml]]:
    """Puts a fake driver in place."""
    monkeypatch.setattr(machine_module, "own_pids", lambda: ((os.getpid(),), True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "pynvml", None)
        yield plug_in
    driver.forget()


@pytest.fixture
def folder(tmp_path: Path) -> str:
    tmp_path.chmod(0o700)
    return str(tmp_path)


def look(folder: str = "/nowhere") -> MachineNow:
    return Machine([folder]).look()


def tell(
    folder: str, uuid: str, *, pid: int | None = None, started: int | None = None, **figures: int
) -> Inside:
    """Writes what a program under vramlens would."""
    number = os.getpid() if pid is None else pid
    start = (start_of(number) or 1) if started is None else started
    inside = Inside(
        number, start, time.time_ns() // 1000, 7, devices=(InsideDevice(0, uuid, **figures),)
    )
    write_inside(inside_path(number, start, folder), inside)
    return inside


def closes(device: DeviceNow) -> bool:
    kinds = device.kinds()
    return (
        sum(kinds.values()) == device.total_bytes
        and min(kinds.values()) >= 0
        and set(kinds) == set(KINDS)
    )


def test_the_names_are_those_of_the_real_package() -> None:
    real = pytest.importorskip("pynvml")
    absent = [
        name for name in vars(FakeNvml) if name.startswith("nvml") and not hasattr(real, name)
    ]
    assert not absent


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_closes_and_raises_nothing(
    use: Callable[[FakeNvml], FakeNvml], shape: str
) -> None:
    use(SHAPES[shape]())
    now = look()
    assert all(closes(device) for device in now.devices if device.total_bytes is not None)
    assert bool(now.devices) or now.notes


def test_several(use: Callable[[FakeNvml], FakeNvml], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")  # the whole machine is shown all the same
    nvml = use(several())
    nvml.gpus[0].compute = [(os.getpid(), 20 * GIB)]
    now = look()
    assert [device.name for device in now.devices] == list("01234567")
    first = now.devices[0]
    assert (first.gpu_percent, first.temperature_c, first.power_w, first.power_limit_w) == (
        90,
        60,
        500.0,
        700.0,
    )
    assert first.used_bytes == 20 * GIB + 640 * MIB
    process = first.processes[0]
    assert process.user is not None
    assert "python" in (process.command or "")
    assert (process.rss_bytes or 0) > MIB
    assert now.devices[1].processes[0].command is None  # it has ended, or is nobody's here
    assert now.driver_version == "580.159.04"


def test_a_divided_gpu_is_its_instances(use: Callable[[FakeNvml], FakeNvml]) -> None:
    use(divided())
    one, two = look().devices
    assert (one.name, two.name, one.is_mig) == ("0:0", "0:1", True)
    assert one.gpu_percent is None
    assert one.temperature_c is None or one.temperature_c == 44
    assert [process.used_bytes for process in one.processes] == [12 * GIB]
    assert two.processes == ()


def test_clients_of_mps_are_processes(use: Callable[[FakeNvml], FakeNvml]) -> None:
    use(shared_by_mps())
    assert {process.pid: process.used_bytes for process in look().devices[0].processes} == {
        999_001: 30 * MIB, 999_002: 5 * GIB, 999_003: 5 * GIB,
    }  # fmt: skip


def test_without_permission_the_figures_stay(use: Callable[[FakeNvml], FakeNvml]) -> None:
    use(without_permission())
    device = look().devices[0]
    assert device.processes is None
    assert device.power_w is None
    assert device.kinds()["unknown"] == 11 * GIB
    assert "does not list" in device.notes[0]


def test_without_sizes_one_process_has_what_is_left(use: Callable[[FakeNvml], FakeNvml]) -> None:
    use(without_sizes(999_001))
    assert look().devices[0].kinds()["other_processes"] == 7 * GIB
    use(without_sizes(999_001, 999_002))
    assert look().devices[0].kinds()["unknown"] == 7 * GIB


def test_a_gpu_that_is_lost_while_watched(use: Callable[[FakeNvml], FakeNvml]) -> None:
    nvml = use(half_lost())
    healthy, lost = look().devices
    assert healthy.total_bytes is not None
    assert lost.total_bytes is None
    assert GPU_IS_LOST in lost.notes[0]
    nvml.gpus[0].refused["open"] = "Insufficient Permissions"
    assert look().devices[0].notes[0].startswith("The driver cannot open this GPU")


def test_it_comes_back_after_a_shutdown_by_another_library(
    use: Callable[[FakeNvml], FakeNvml], monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = use(several())
    machine = Machine(["/nowhere"])
    assert machine.look().devices[0].total_bytes is not None
    nvml.nvmlShutdown()
    monkeypatch.setattr(machine_module, "_LOOK_AGAIN_S", 0.0)
    assert machine.look().devices[0].total_bytes is not None


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    driver.forget()
    now = look()
    driver.forget()
    assert now.devices == ()
    assert "pynvml" in now.notes[0]


def test_a_program_under_vramlens_is_found_by_number_and_start(
    use: Callable[[FakeNvml], FakeNvml], folder: str
) -> None:
    gpu = Gpu(uuid_of(0)).use(os.getpid(), 10 * GIB).use(999_001, 2 * GIB)
    use(FakeNvml(gpu))
    tell(folder, uuid_of(0), allocated_bytes=6 * GIB, reserved_bytes=8 * GIB, nccl_bytes=512 * MIB)
    device = look(folder).devices[0]
    process = device.processes[0]
    assert process.pid == os.getpid()
    assert process.inside is not None
    assert not process.is_inferred
    kinds = device.kinds()
    assert kinds["pytorch_allocated"] == 6 * GIB
    assert kinds["pytorch_cached"] == 2 * GIB
    assert kinds["nccl"] == 512 * MIB
    assert kinds["outside_pytorch"] == 10 * GIB - 8 * GIB - 512 * MIB
    assert kinds["other_processes"] == 2 * GIB
    assert closes(device)


def test_a_number_that_is_used_again_is_not_the_old_process(
    use: Callable[[FakeNvml], FakeNvml], folder: str
) -> None:
    use(FakeNvml(Gpu(uuid_of(0)).use(os.getpid(), 10 * GIB)))
    tell(folder, uuid_of(0), started=1, allocated_bytes=GIB, reserved_bytes=GIB)
    assert look(folder).devices[0].processes[0].inside is None


def test_in_a_container_the_only_program_is_taken_for_the_only_process(
    use: Callable[[FakeNvml], FakeNvml], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_module, "own_pids", lambda: ((os.getpid(),), False))
    use(in_container())
    tell(folder, uuid_of(0), allocated_bytes=6 * GIB, reserved_bytes=8 * GIB)
    process = look(folder).devices[0].processes[0]
    assert (process.pid, process.is_inferred) == (999_001, True)
    assert process.inside is not None
    tell(
        folder, uuid_of(0), allocated_bytes=6 * GIB, reserved_bytes=50 * GIB
    )  # larger than the process: it is not it
    listed = look(folder).devices[0].processes
    assert [(one.pid, one.inside is not None, one.is_inferred) for one in listed] == [
        (os.getpid(), True, True),
        (999_001, False, False),
    ]


def test_a_program_that_no_driver_lists_is_shown_with_what_it_tells(
    use: Callable[[FakeNvml], FakeNvml], folder: str
) -> None:
    use(without_permission())
    tell(folder, uuid_of(0), allocated_bytes=6 * GIB, reserved_bytes=8 * GIB)
    device = look(folder).devices[0]
    assert device.processes[0].used_bytes is None
    assert device.kinds()["pytorch_allocated"] == 6 * GIB
    assert closes(device)


def test_figures_of_different_moments_still_close(
    use: Callable[[FakeNvml], FakeNvml], folder: str
) -> None:
    use(FakeNvml(Gpu(uuid_of(0)).use(os.getpid(), 10 * GIB)))
    tell(
        folder, uuid_of(0), allocated_bytes=40 * GIB, reserved_bytes=60 * GIB
    )  # it has just given all of that back
    device = look(folder).devices[0]
    assert closes(device)
    assert device.kinds()["free"] == device.free_bytes


def test_in_a_container_a_number_is_believed_only_with_a_gpu_open() -> None:
    assert HostProcesses(sees_host_pids=True).get(os.getpid()).command
    assert HostProcesses(sees_host_pids=False).get(os.getpid()).command is None
    assert HostProcesses(sees_host_pids=True).get(2**22 + 1).command is None


@pytest.mark.parametrize(("owner", "is_believed"), [(1000, True), (1001, False)])
def test_what_another_user_tells_of_a_container_is_not_believed(
    owner: int, is_believed: bool
) -> None:
    """Root reads every user's files: of a process in a container anybody could write one, but
    only as himself.
    """
    told = Inside(7, 55, 1, devices=(InsideDevice(0, uuid_of(0), GIB),), is_here=False, owner=owner)
    host_process = HostProcess("ada", "train", 55, (4711, 7), 1000)
    matched, unlisted = match([GpuProcess(4711, 2 * GIB)], {4711: host_process}, [told], uuid_of(0))
    assert bool(matched) == is_believed
    assert unlisted == []


def test_the_drivers_part_of_an_earlier_moment_still_closes() -> None:
    device = DeviceNow(
        "0", total_bytes=80 * GIB, free_bytes=80 * GIB - MIB, driver_bytes=600 * MIB, processes=()
    )
    assert closes(device)
