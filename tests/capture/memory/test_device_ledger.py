"""Ledgers of a faked device: their rows always sum to its total, and each says how sure it is."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capture.memory.test_driver import FakeGpu, Install, nvml
from support.fake_nvml import NO_PERMISSION, FakeNvml, NVMLError
from vramlens.capture.memory import device_ledger as module
from vramlens.capture.memory.device_ledger import (
    Ledger,
    PyTorchCounters,
    ledger,
    ledgers,
    rows_of,
)
from vramlens.capture.memory.driver import GpuMemory, GpuProcess, forget
from vramlens.ground.vocabulary import LedgerRow
from vramlens.units import GIB, MIB

__all__ = ["nvml"]
ME = os.getpid()


class FakeTorch(ModuleType):
    """A torch that uses a GPU, and remembers every call that would have made a CUDA context."""

    def __init__(
        self, *uuids: str, used: dict[int, dict[str, int]] | None = None, initialized: bool = True
    ) -> None:
        super().__init__("torch")
        self.uuids, self.used, self.initialized = uuids, used or {}, initialized
        self.forbidden: list[str] = []
        self.backend, self.counts, self.now = "native", True, 0
        self.info: tuple[int, int] | None = None
        self.version = SimpleNamespace(hip=None)
        self._C = SimpleNamespace(_cuda_hasPrimaryContext=lambda index: index in self.used)
        self.cuda = SimpleNamespace(
            is_initialized=lambda: self.initialized,
            device_count=lambda: self._only_initialized("device_count", len(self.uuids)),
            current_device=lambda: self._only_initialized("current_device", self.now),
            get_device_properties=self._properties,
            memory_stats=self._stats,
            mem_get_info=self._mem_get_info,
            host_memory_stats_as_nested_dict=lambda: {
                "active_bytes": {"current": 3 * MIB},
                "allocated_bytes": {"current": 4 * MIB},
            },
            memory=SimpleNamespace(get_allocator_backend=lambda: self.backend),
        )

    def device(self, kind: str) -> str:
        return kind

    def _only_initialized(self, name: str, answer: Any) -> Any:
        if not self.initialized:
            self.forbidden.append(name)
        return answer

    def _properties(self, index: int) -> Any:
        return self._only_initialized(
            "properties",
            SimpleNamespace(uuid=self.uuids[index], name="NVIDIA A10", total_memory=23 * GIB),
        )

    def _stats(self, index: int) -> dict[str, int]:
        if index not in self.used:
            self.forbidden.append("memory_stats")
        if not self.counts:
            raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats.")
        return self._only_initialized("memory_stats", self.used[index])

    def _mem_get_info(self, index: int) -> tuple[int, int]:
        if index not in self.used or not self.initialized:
            self.forbidden.append("mem_get_info")
        if self.info is None:
            raise RuntimeError("CUDA error: unspecified launch failure")
        return self.info


def stats(allocated: int, reserved: int, **more: int) -> dict[str, int]:
    return {
        "allocated_bytes.all.current": allocated,
        "reserved_bytes.all.current": reserved,
        **more,
    }


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Puts a fake torch in place; at the end no call was made that makes a context."""
    put: list[FakeTorch] = []

    def place(torch: FakeTorch) -> FakeTorch:
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.delitem(sys.modules, "torch.distributed.distributed_c10d", raising=False)
        put.append(torch)
        return torch

    yield place
    assert [torch.forbidden for torch in put] == [[] for _ in put]


@pytest.fixture(autouse=True)
def sees_host_pids(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own process may be in a container: the ledger is told that it is not."""
    monkeypatch.setattr(module, "own_pids", lambda: ((ME,), True))
    monkeypatch.setattr(module, "process_name", lambda pid: {ME: "python", 70: "Xorg"}.get(pid))


def contained(monkeypatch: pytest.MonkeyPatch, *pids: int) -> None:
    monkeypatch.setattr(module, "own_pids", lambda: (pids or (ME,), False))


def sizes(found: Ledger) -> dict[str, int]:
    assert sum(row.bytes for row in found.rows) == found.total_bytes
    assert len({row.kind for row in found.rows}) == len(found.rows)
    return {row.kind: row.bytes for row in found.rows}


def sure(found: Ledger) -> dict[str, str]:
    return {row.kind: row.confidence for row in found.rows}


def note(found: Ledger, kind: str) -> str:
    return next(row.note for row in found.rows if row.kind == kind)


def a10(**more: Any) -> FakeGpu:
    """24 GiB: 400 MiB the driver's, 4 GiB and 500 MiB this process's, 1 GiB somebody's, 100 MiB
    nobody's.
    """
    given_ = {"compute": [(ME, 4 * GIB + 500 * MIB)], "graphics": [(70, GIB)]} | more
    taken = 400 * MIB + 4 * GIB + 500 * MIB + GIB + 100 * MIB
    return FakeGpu("GPU-a", free=24 * GIB - taken, **given_)


def test_every_byte(nvml: Install, install: Any) -> None:
    nvml(a10())
    install(FakeTorch("a", used={0: stats(3 * GIB, 4 * GIB)}))
    found = ledger()
    assert sizes(found) == {
        "driver_reserved": 400 * MIB,
        "pytorch_allocated": 3 * GIB,
        "pytorch_cached": GIB,
        "this_process_other": 500 * MIB,
        "other_processes": GIB,
        "free": 24 * GIB - 6 * GIB + 24 * MIB,
        "unknown": 100 * MIB,
    }
    assert set(sure(found).values()) == {"exact", "unknown"}
    assert note(found, "other_processes") == "70 (Xorg) 1.00 GiB"
    assert "NCCL" in note(found, "this_process_other")
    assert (found.device, found.uuid, found.name, found.has_context) == (
        0,
        "GPU-a",
        "NVIDIA A10",
        True,
    )
    assert [(one.pid, one.name, one.is_this) for one in found.processes] == [
        (70, "Xorg", False),
        (ME, "python", True),
    ]
    assert found.bytes_of("nccl") is None
    assert json.loads(json.dumps(found.to_dict()))["rows"][0] == {
        "kind": "driver_reserved", "bytes": 400 * MIB, "confidence": "exact", "note": "kept by the driver and firmware",
    }  # fmt: skip


@pytest.mark.parametrize(
    "device",
    [1, "1", "cuda:1", SimpleNamespace(index=1), None, "cuda", SimpleNamespace(index=None)],
)
def test_devices_by_any_name(nvml: Install, install: Any, device: Any) -> None:
    nvml(FakeGpu("GPU-x"), FakeGpu("GPU-y"))
    install(FakeTorch("y", "x", used={1: stats(0, 0)})).now = 1
    assert ledger(device).uuid == "GPU-x"


@pytest.mark.parametrize("device", [5, -1, "banana", object(), 2**70])
def test_no_such_device(nvml: Install, install: Any, device: Any) -> None:
    nvml(FakeGpu("GPU-x"))
    install(FakeTorch("x"))
    found = ledger(device)
    assert (found.rows, found.total_bytes) == ((), None)
    assert found.notes


def test_several_gpus_in_cudas_order(
    nvml: Install, install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml(a10(), FakeGpu("GPU-b", compute=[(71, 2 * GIB)], free=20 * GIB), FakeGpu("GPU-c"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b,GPU-a")
    install(FakeTorch("b", "a", used={1: stats(3 * GIB, 4 * GIB)}))
    other, mine = ledgers()
    assert (other.uuid, mine.uuid) == ("GPU-b", "GPU-a")
    assert sizes(other)["other_processes"] == 2 * GIB
    assert (
        sizes(other)["this_process_other"],
        sizes(other)["pytorch_allocated"],
        other.has_context,
    ) == (0, 0, False)
    assert sizes(mine)["pytorch_allocated"] == 3 * GIB


def test_before_cuda_nothing_of_pytorch_is_asked(nvml: Install, install: Any) -> None:
    nvml(a10(compute=[(71, None)]))
    install(FakeTorch("a", used={0: stats(1, 1)}, initialized=False))
    found = ledger()
    assert sizes(found)["pytorch_allocated"] == 0
    assert (sure(found)["other_processes"], sizes(found)["other_processes"]) == (
        "inferred",
        5 * GIB + 600 * MIB,
    )


def test_another_library_has_a_context(nvml: Install, install: Any) -> None:
    nvml(a10())
    install(FakeTorch("a", initialized=False))
    assert sizes(ledger())["this_process_other"] == 4 * GIB + 500 * MIB


def test_without_torch(nvml: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml(a10())
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert sizes(ledger())["other_processes"] == GIB
    assert "torch" not in sys.modules


def test_an_old_driver(nvml: Install, install: Any) -> None:
    nvml(a10()).missing.add("v2")
    install(FakeTorch("a", used={0: stats(3 * GIB, 4 * GIB)}))
    found = ledger()
    assert sizes(found)["unknown"] == 500 * MIB  # with the driver's own
    assert "driver_reserved" not in sizes(found)


class TestContainers:
    HOST = 70  # which is Xorg at home

    def test_host_pids_one_process(
        self, nvml: Install, install: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        contained(monkeypatch)
        nvml(a10(compute=[(self.HOST, 4 * GIB + 500 * MIB)], graphics=[]))
        install(FakeTorch("a", used={0: stats(3 * GIB, 4 * GIB)}))
        found = ledger()
        assert sizes(found)["this_process_other"] == 500 * MIB
        assert sure(found)["this_process_other"] == sure(found)["other_processes"] == "inferred"
        assert sizes(found)["unknown"] == GIB + 100 * MIB
        assert f"process {self.HOST} is assumed to be this one" in note(found, "this_process_other")
        assert found.processes[0].name is None  # the number may be somebody else's in here

    @pytest.mark.parametrize(
        "processes",
        [[(HOST, 4 * GIB + 500 * MIB), (71, GIB)], [(HOST, 3 * GIB)], [(HOST, None)], []],
    )
    def test_host_pids_that_cannot_be_told_apart(
        self,
        nvml: Install,
        install: Any,
        monkeypatch: pytest.MonkeyPatch,
        processes: list[tuple[int, int | None]],
    ) -> None:
        contained(monkeypatch)
        nvml(a10(compute=processes, graphics=[]))
        install(FakeTorch("a", used={0: stats(3 * GIB, 4 * GIB)}))
        found = ledger()
        assert sizes(found)["outside_pytorch"] == GIB + 600 * MIB
        assert sure(found)["outside_pytorch"] == "inferred"
        assert not {"this_process_other", "other_processes", "unknown"} & set(sizes(found))
        assert {process.is_this for process in found.processes} <= {None}

    def test_the_hosts_proc_tells(
        self, nvml: Install, install: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        contained(monkeypatch, self.HOST, ME)
        nvml(a10(compute=[(self.HOST, 4 * GIB + 500 * MIB), (71, GIB)], graphics=[]))
        install(FakeTorch("a", used={0: stats(3 * GIB, 4 * GIB)}))
        found = ledger()
        assert (sizes(found)["this_process_other"], sure(found)["this_process_other"]) == (
            500 * MIB,
            "exact",
        )

    @pytest.mark.parametrize(
        ("used", "expected"), [(4 * GIB + 500 * MIB, 500 * MIB), (GIB, None), (0, None)]
    )
    def test_the_same_number_may_be_somebody_else(
        self,
        nvml: Install,
        install: Any,
        monkeypatch: pytest.MonkeyPatch,
        used: int,
        expected: int | None,
    ) -> None:
        contained(monkeypatch)
        nvml(a10(compute=[(ME, used), (71, GIB)], graphics=[]))
        install(FakeTorch("a", used={0: stats(3 * GIB, 4 * GIB)}))
        found = ledger()
        assert found.bytes_of("this_process_other") == expected
        assert sure(found).get("this_process_other", "inferred") == "inferred"

    def test_no_context_here(
        self, nvml: Install, install: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        contained(monkeypatch)
        nvml(a10(compute=[(self.HOST, 4 * GIB)], graphics=[]))
        install(FakeTorch("a"))
        found = ledger()
        assert (sizes(found)["other_processes"], sure(found)["other_processes"]) == (
            4 * GIB,
            "inferred",
        )


def test_sizes_of_processes_not_available(nvml: Install, install: Any) -> None:
    """Windows with WDDM: who is there, not how much each has."""
    nvml(a10(compute=[(ME, None), (71, None)], graphics=[(70, None)]))
    install(FakeTorch("a", used={0: stats(3 * GIB, 4 * GIB)}))
    found = ledger()
    assert sizes(found)["outside_pytorch"] == GIB + 600 * MIB
    assert "70 (Xorg), 71" in note(found, "outside_pytorch")


def test_only_the_own_size_not_available(nvml: Install, install: Any) -> None:
    nvml(a10(compute=[(ME, None)]))
    install(FakeTorch("a", used={0: stats(3 * GIB, 4 * GIB)}))
    found = ledger()
    assert (sizes(found)["this_process_other"], sure(found)["this_process_other"]) == (
        600 * MIB,
        "inferred",
    )
    assert sizes(found)["other_processes"] == GIB


def test_lists_not_permitted(nvml: Install, install: Any) -> None:
    fake = nvml(a10())
    fake.refused |= {
        f"nvmlDeviceGetComputeRunningProcesses{suffix}": NO_PERMISSION for suffix in ("_v3", "_v2")
    }
    install(FakeTorch("a", used={0: stats(3 * GIB, 4 * GIB)}))
    found = ledger()
    assert "does not list the processes" in note(found, "outside_pytorch")
    assert sizes(found)["outside_pytorch"] == GIB + 600 * MIB


def test_this_process_is_not_listed(nvml: Install, install: Any) -> None:
    """As under MPS with an old driver, which lists the server alone."""
    nvml(a10(compute=[(71, 4 * GIB + 500 * MIB)], graphics=[]))
    install(FakeTorch("a", used={0: stats(3 * GIB, 4 * GIB)}))
    found = ledger()
    assert note(found, "outside_pytorch").endswith("the driver lists others only: 71 4.49 GiB")


def test_more_than_the_driver_counts(nvml: Install, install: Any) -> None:
    """The allocator says 5 GiB, the driver 4.5 for this process: read at different moments."""
    nvml(a10())
    install(FakeTorch("a", used={0: stats(3 * GIB, 5 * GIB)}))
    found = ledger()
    assert (sizes(found)["this_process_other"], sure(found)["this_process_other"]) == (
        0,
        "inferred",
    )
    assert (sizes(found)["pytorch_cached"], sure(found)["pytorch_cached"]) == (2 * GIB, "exact")
    assert sizes(found)["other_processes"] == 600 * MIB
    assert "less than measured" in note(found, "other_processes")


def test_an_allocator_that_does_not_count(nvml: Install, install: Any) -> None:
    nvml(a10())
    torch = install(FakeTorch("a", used={0: stats(0, 0)}))
    torch.counts, torch.backend = False, "pluggable"
    found = ledger()
    assert sizes(found)["this_process_other"] == 4 * GIB + 500 * MIB
    assert "pytorch_allocated" not in sizes(found)
    assert found.notes == (
        "PyTorch's memory cannot be broken down here: its allocator (pluggable) has no counters.",
    )


def test_private_pools_are_named(nvml: Install, install: Any) -> None:
    nvml(a10())
    pools = {"reserved_bytes_by_private_pools.0_1.all.current": MIB, "reserved_bytes_by_private_pools.0_2.all.current": MIB,
             "reserved_bytes_by_private_pools.0_2.all.peak": GIB}  # fmt: skip
    install(FakeTorch("a", used={0: stats(3 * GIB, 4 * GIB, **pools)}))
    assert note(ledger(), "pytorch_cached").startswith(
        "2.00 MiB of what PyTorch reserved is in private pools"
    )


class TestNccl:
    @pytest.fixture
    def groups(self, nvml: Install, install: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
        nvml(a10(), FakeGpu("GPU-b", compute=[(ME, GIB)]))

        def place(*groups: Any, used: tuple[int, ...] = (0,)) -> Ledger:
            install(FakeTorch("a", "b", used={index: stats(3 * GIB, 4 * GIB) for index in used}))
            world = SimpleNamespace(_world=SimpleNamespace(pg_map=dict.fromkeys(groups)))
            monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", world)
            return ledger(0)

        return place

    @staticmethod
    def group(total: Any, bound: int | None = 0) -> Any:
        def memory_stats() -> Any:
            if isinstance(total, Exception):
                raise total
            return {"suspend": 1, "suspended": 0, "persist": 2, "total": total}

        backend = SimpleNamespace(memory_stats=memory_stats)
        device = None if bound is None else SimpleNamespace(index=bound)

        class Group:
            bound_device_id = device

            def _get_backend(self, kind: str) -> Any:
                return backend

        return Group()

    def test_is_told_apart(self, groups: Any) -> None:
        one = self.group(200 * MIB)
        found = groups(
            one,
            self.group(100 * MIB),
            self.group(GIB, bound=1),
            self.group(RuntimeError("NCCL 2.28")),
        )
        assert (sizes(found)["nccl"], sure(found)["nccl"]) == (300 * MIB, "exact")
        assert sizes(found)["this_process_other"] == 200 * MIB
        assert "NCCL" not in note(found, "this_process_other")

    def test_one_communicator_counts_once(self, groups: Any) -> None:
        one, two = self.group(200 * MIB), self.group(0)
        type(two)._get_backend = lambda self, kind: one._get_backend(kind)
        assert sizes(groups(one, two))["nccl"] == 200 * MIB

    def test_an_unbound_group_is_on_the_current_device(self, groups: Any) -> None:
        assert sure(groups(self.group(MIB, bound=None)))["nccl"] == "exact"
        assert sure(groups(self.group(MIB, bound=None), used=(0, 1)))["nccl"] == "inferred"

    def test_never_more_than_this_process_has(self, groups: Any) -> None:
        found = groups(self.group(9 * GIB))
        assert (sizes(found)["nccl"], sure(found)["nccl"]) == (500 * MIB, "inferred")
        assert sizes(found)["this_process_other"] == 0

    def test_absent_where_nobody_counts(self, groups: Any) -> None:
        assert "nccl" not in sizes(
            groups(self.group(RuntimeError("requires NCCL 2.29.7 or later")))
        )
        assert "nccl" not in sizes(groups(SimpleNamespace, object))


class TestWithoutNvml:
    @pytest.fixture(autouse=True)
    def _none(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setitem(sys.modules, "pynvml", None)
        forget()
        yield
        forget()

    def test_cuda_says_what_is_free(self, install: Any) -> None:
        torch = install(FakeTorch("a", "b", used={0: stats(3 * GIB, 4 * GIB)}))
        torch.info = (17 * GIB, 23 * GIB)
        first, second = ledgers()
        assert sizes(first)["outside_pytorch"] == 2 * GIB
        assert sizes(second) == {"pytorch_allocated": 0, "pytorch_cached": 0, "unknown": 23 * GIB}
        assert "without pynvml" in first.notes[0]

    def test_a_broken_context(self, install: Any) -> None:
        install(FakeTorch("a", used={0: stats(3 * GIB, 4 * GIB)}))
        assert sizes(ledger()) == {
            "pytorch_allocated": 3 * GIB,
            "pytorch_cached": GIB,
            "unknown": 19 * GIB,
        }

    def test_amd(self, install: Any) -> None:
        torch = install(FakeTorch("a", "b", used={0: stats(3 * GIB, 4 * GIB), 1: stats(1, 1)}))
        torch.version.hip, torch.info = "6.4", (17 * GIB, 23 * GIB)
        first, second = ledgers()
        assert sizes(first)["free"] == 17 * GIB
        assert "free" not in sizes(second)  # only the current device is asked
        assert first.notes == ()

    def test_intel(self, install: Any) -> None:
        torch = install(FakeTorch("a", used={0: stats(3 * GIB, 4 * GIB)}))
        torch.xpu, torch.cuda = torch.cuda, SimpleNamespace(is_initialized=lambda: False)
        torch.info = (17 * GIB, 23 * GIB)
        assert sizes(ledger())["pytorch_allocated"] == 3 * GIB

    def test_nothing_at_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        assert ledgers() == ()
        assert ledger().notes[0] == "There is no GPU 0 here: this process sees none."


def test_reads_again_when_memory_moved_meanwhile(nvml: Install, install: Any) -> None:
    fake = nvml(a10())
    torch = install(FakeTorch("a", used={0: stats(3 * GIB, 4 * GIB)}))
    plain, calls = fake.nvmlDeviceGetMemoryInfo, []

    def moving(*args: Any) -> Any:
        answer = plain(*args)
        if not calls:  # a segment goes back to the driver just after it has answered
            torch.used[0] = stats(GIB, 2 * GIB)
            fake.gpus[0].free += 2 * GIB
            fake.gpus[0].compute = [(ME, 2 * GIB + 500 * MIB)]
        calls.append(args)
        return answer

    fake.nvmlDeviceGetMemoryInfo = moving  # type: ignore[method-assign]
    found = ledger()
    assert len(calls) == 2
    assert sizes(found)["pytorch_allocated"] == GIB
    assert (sizes(found)["unknown"], sizes(found)["this_process_other"]) == (100 * MIB, 500 * MIB)


def test_from_many_threads(nvml: Install, install: Any) -> None:
    nvml(a10())
    install(FakeTorch("a", used={0: stats(3 * GIB, 4 * GIB)}))
    found: list[Ledger] = []
    threads = [
        threading.Thread(target=lambda: found.extend(ledger() for _ in range(20))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 160
    assert len(set(found)) == 1


def test_whatever_breaks_nothing_is_raised(
    nvml: Install, install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake: FakeNvml = nvml(a10())
    torch = install(FakeTorch("a", used={0: stats(3 * GIB, 4 * GIB)}))
    for name in [name for name in vars(FakeNvml) if name.startswith("nvml") and name != "nvmlInit"]:
        fake.refused = {name: NO_PERMISSION}
        forget()
        assert isinstance(ledger(), Ledger), name
        assert isinstance(ledgers(), tuple)
    for name in vars(torch.cuda):
        monkeypatch.setattr(torch.cuda, name, lambda *_: (_ for _ in ()).throw(NVMLError("broken")))
        forget()
        assert isinstance(ledger(), Ledger), name
        assert isinstance(ledgers(), tuple)
    monkeypatch.setattr(module, "_ledger_of", lambda *_: 1 / 0)
    assert ledger().notes == ("The GPU's memory could not be read: division by zero.",)


AMOUNTS = st.integers(0, 100)
SOME = st.none() | AMOUNTS
LISTS = st.none() | st.lists(
    st.builds(GpuProcess, st.integers(1, 5), SOME), max_size=4, unique_by=lambda one: one.pid
)


@settings(max_examples=1000, deadline=None)
@given(
    memory=st.builds(
        GpuMemory,
        st.just(100),
        AMOUNTS,
        SOME,
        LISTS.map(lambda found: None if found is None else tuple(found)),
    ),
    held=st.builds(
        PyTorchCounters,
        st.booleans(),
        SOME,
        SOME,
        AMOUNTS,
        st.none() | st.integers(0, 300),
        st.booleans(),
        st.just(""),
    ),
    pids=st.lists(st.integers(1, 5), min_size=1, max_size=2),
    sees_host_pids=st.booleans(),
)
def test_the_sum_closes_whatever_is_said(
    memory: GpuMemory, held: PyTorchCounters, pids: list[int], *, sees_host_pids: bool
) -> None:
    rows = rows_of(memory, held, pids, sees_host_pids=sees_host_pids)
    assert sum(row.bytes for row in rows) == memory.total_bytes
    assert all(isinstance(row, LedgerRow) and row.bytes >= 0 for row in rows)
    assert len({row.kind for row in rows}) == len(rows)
    assert {row.confidence for row in rows} <= {"exact", "inferred", "unknown"}
    assert all((row.kind == "unknown") == (row.confidence == "unknown") for row in rows)
    kinds = {row.kind for row in rows}
    assert ("outside_pytorch" in kinds) != ("this_process_other" in kinds)
    assert ("other_processes" in kinds) == ("this_process_other" in kinds)
    # What the allocator says stands, unless the device does not have that much.
    claimed = (held.reserved_bytes or 0) if held.allocated_bytes is not None else 0
    if (
        held.reserved_bytes is not None
        and (held.allocated_bytes or 0) <= claimed <= memory.total_bytes
    ):
        by_kind = {row.kind: row.bytes for row in rows}
        if held.allocated_bytes is not None:
            assert by_kind["pytorch_allocated"] == held.allocated_bytes
            assert by_kind["pytorch_cached"] == claimed - held.allocated_bytes
