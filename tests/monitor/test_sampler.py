"""``Monitor``: what it sees, what it costs, and that the program is what it was without it."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import vramlens
from support.fake_nvml import FakeNvml, Gpu, plug_in, uuid_of
from vramlens.capture import warn
from vramlens.capture.memory import driver
from vramlens.capture.torch_api import counters
from vramlens.errors import UsageError
from vramlens.monitor import Alert, Monitor
from vramlens.monitor import sampler as sampler_module
from vramlens.monitor.allocator_counters import RecentPeak, room_bytes
from vramlens.monitor.monitor_samples import DeviceSample, MonitorSamples, Sample

GIB, MIB = 1 << 30, 1 << 20
SOURCE = Path(vramlens.__path__[0]).parent


class Cuda:
    """``torch.cuda`` once it is in use; ``live`` is what PyTorch holds on its one GPU."""

    def __init__(self) -> None:
        self.live, self.reserved, self.peak, self.initialized = 4 * GIB, 6 * GIB, 5 * GIB, True
        self.fraction = 1.0

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        return 1

    def memory_stats_as_nested_dict(self, device: int) -> dict[str, Any]:
        self.peak = max(self.peak, self.live)
        return {
            "allocated_bytes": {"all": {"current": self.live, "peak": self.peak}},
            "reserved_bytes": {"all": {"current": self.reserved}},
            "num_alloc_retries": 0,
            "num_ooms": 0,
        }

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(
            uuid=uuid_of(0).removeprefix("GPU-"), name="NVIDIA H100", total_memory=80 * GIB
        )

    def get_per_process_memory_fraction(self, index: int) -> float:
        return self.fraction


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(warn, "_said", set())
    monkeypatch.setitem(sys.modules, "pynvml", None)
    one = Gpu(uuid_of(0), total=80 * GIB, free=70 * GIB, reserved=0)
    plug_in(FakeNvml(one))
    yield one
    driver.forget()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    fake = Cuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=fake))
    return fake


def test_what_it_sees(gpu: Gpu, cuda: Cuda) -> None:
    monitor = Monitor(0.01)
    with monitor:
        cuda.live = 7 * GIB  # a spike between samples: the counter's peak knows it
        counters(cuda, 0)
        cuda.live, gpu.free = 4 * GIB, 60 * GIB
        wait_for_samples(monitor, 3)
    found = monitor.summary()
    (device,) = found.devices
    assert device.peak_allocated_bytes in (
        4 * GIB,
        7 * GIB,
    )  # 4 if the spike came before the first sample
    assert (device.peak_reserved_bytes, device.most_used_bytes, device.least_free_bytes) == (
        6 * GIB,
        20 * GIB,
        60 * GIB,
    )
    assert (device.total_bytes, device.name) == (80 * GIB, "NVIDIA H100 80GB HBM3")
    assert found.samples >= 3
    assert found.peak_rss_bytes > MIB
    assert "all processes at most 20.00 GiB of 80.00 GiB" in str(found)
    assert json.dumps(found.to_dict(), allow_nan=False)
    count = monitor.samples.count
    time.sleep(0.05)
    assert monitor.samples.count == count  # it has ended
    monitor.stop()


def wait_for_samples(monitor: Monitor, count: int) -> None:
    until = time.monotonic() + 10
    first = monitor.samples.count
    while monitor.samples.count < first + count:
        assert time.monotonic() < until
        time.sleep(0.005)


def test_a_peak_of_before_is_not_the_monitors(gpu: Gpu, cuda: Cuda) -> None:
    cuda.peak = 50 * GIB
    monitor = Monitor(60)
    monitor.sample()
    monitor.sample()
    assert monitor.summary().devices[0].peak_allocated_bytes == 4 * GIB
    cuda.live = 51 * GIB
    counters(cuda, 0)
    cuda.live = 4 * GIB
    monitor.sample()
    assert monitor.summary().devices[0].peak_allocated_bytes == 51 * GIB


def test_a_peak_that_the_program_reset_counts_anew(gpu: Gpu, cuda: Cuda) -> None:
    cuda.peak = 50 * GIB
    monitor = Monitor(60)
    monitor.sample()
    cuda.peak = cuda.live  # torch.cuda.reset_peak_memory_stats()
    monitor.sample()
    cuda.peak = 9 * GIB
    monitor.sample()
    assert monitor.summary().devices[0].peak_allocated_bytes == 9 * GIB


def test_a_gpu_that_was_full_had_nothing_free(gpu: Gpu, cuda: Cuda) -> None:
    monitor = Monitor(60)
    for free in (5 * GIB, 0, 7 * GIB):
        gpu.free = free
        monitor.sample()
    assert monitor.summary().devices[0].least_free_bytes == 0


def test_a_driver_that_does_not_answer_does_not_hold_up_the_end(
    gpu: Gpu, cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_module, "_THREAD_ENDS_WITHIN_S", 0.05)
    answers = threading.Event()
    monkeypatch.setattr(sampler_module, "free_and_total", lambda _gpu: answers.wait(120) and None)
    monitor = Monitor(3600).start()
    thread = monitor._thread
    began = time.monotonic()
    monitor.stop()
    took = time.monotonic() - began
    answers.set()
    thread.join()
    assert took < 60
    assert monitor.summary().seconds < 60


def test_no_further_thread_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(warn, "_said", set())
    monkeypatch.setattr(threading.Thread, "start", refused)
    with Monitor(0.01) as monitor:
        monitor.step()
    assert monitor.summary().steps == 1
    assert "can't start new thread" in capsys.readouterr().err


def test_a_copy_has_its_rules_and_has_not_begun() -> None:
    monitor = Monitor(0.5, alerts=["used > 92%"], webhook="http://127.0.0.1:9/", quiet=True)
    with monitor:
        copies = [pickle.loads(pickle.dumps(monitor)), copy.deepcopy(monitor)]
    for one in copies:
        assert (one.interval, [rule.text for rule in one._watch.rules]) == (0.5, ["used > 92%"])
        assert one._actions._webhook == "http://127.0.0.1:9/"
        assert (one._thread, one.latest, one.samples.count) == (None, None, 0)


def test_growth_by_step_and_when_it_runs_out(
    gpu: Gpu, cuda: Cuda, capsys: pytest.CaptureFixture[str]
) -> None:
    got: list[Alert] = []
    monitor = Monitor(60, alerts=["growth > 5MiB/step"], on_alert=got.append)
    for _ in range(50):
        cuda.live += 8 * MIB
        monitor.step()
        monitor.sample()
    (alert,) = got
    assert alert.value == 8 * MIB
    room = gpu.free + cuda.reserved - cuda.live
    assert abs(monitor.latest.devices[0].steps_left - room // (8 * MIB)) <= 1
    assert f"will run out in about {alert.steps_left:,} steps" in alert.text
    assert capsys.readouterr().err == f"vramlens: alert: {alert.text}\n"
    assert monitor.summary().steps == 50
    assert "grows by 8.00 MiB per step" in str(monitor.summary())


def test_a_flat_run_is_quiet(gpu: Gpu, cuda: Cuda, capsys: pytest.CaptureFixture[str]) -> None:
    monitor = Monitor(60, alerts=["growth > 1MiB/step", "used > 92%"])
    for step in range(300):
        cuda.live = 4 * GIB + (step % 7) * 100 * MIB
        monitor.step()
        monitor.sample()
    assert monitor.alerts == []
    assert capsys.readouterr().err == ""


def test_room_goes_by_the_peak_of_late_and_by_the_processes_limit(cuda: Cuda) -> None:
    now = counters(cuda, 0)
    assert now is not None
    assert room_bytes(cuda, 0, now, 10 * GIB, 5 * GIB) == 10 * GIB + 6 * GIB - 5 * GIB
    cuda.fraction = 0.1
    assert room_bytes(cuda, 0, now, 10 * GIB, 5 * GIB) == int(80 * GIB * 0.1) - 5 * GIB
    assert room_bytes(cuda, 0, now, None, 5 * GIB) is None


def test_a_spike_of_long_ago_is_not_the_peak_of_late(cuda: Cuda) -> None:
    cuda.peak = 50 * GIB
    recent = RecentPeak(kept=5)
    assert {recent.add(counters(cuda, 0)) for _ in range(10)} == {4 * GIB}
    cuda.live = 60 * GIB
    assert recent.add(counters(cuda, 0)) == 60 * GIB


def test_before_the_gpu_is_used_the_driver_is_asked_alone(gpu: Gpu, cuda: Cuda) -> None:
    cuda.initialized = False
    sample = Monitor(60).sample()
    assert sample.devices == (DeviceSample(0, "NVIDIA H100 80GB HBM3", 80 * GIB, 70 * GIB),)


def test_the_driver_fails_half_way(gpu: Gpu, cuda: Cuda) -> None:
    monitor = Monitor(60)
    monitor.sample()
    gpu.refused["all"] = "GPU is lost"
    (device,) = monitor.sample().devices
    assert (device.total_bytes, device.free_bytes, device.allocated_bytes) == (None, None, 4 * GIB)


def test_no_driver_and_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    driver.forget()
    with Monitor(0.01) as monitor:
        wait_for_samples(monitor, 1)
    driver.forget()
    found = monitor.summary()
    assert found.devices == ()
    assert "pynvml" in str(found)


@pytest.mark.parametrize("interval", [0, -1, float("nan"), 0.001, float("inf"), 1e10])
def test_an_interval_that_is_none(interval: float) -> None:
    with pytest.raises(UsageError, match="interval"):
        Monitor(interval)


def test_listeners_hear_each_sample_and_may_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warn, "_said", set())
    heard: list[Sample] = []
    monitor = Monitor(60)
    monitor.on_sample(lambda sample: 1 / 0)
    monitor.on_sample(heard.append)
    monitor.sample()
    monitor.sample()
    assert len(heard) == 2
    assert capsys.readouterr().err.count("ZeroDivisionError") == 1


def test_samples_are_bounded_and_evenly_thinned() -> None:
    samples = MonitorSamples()
    for at in range(50_000):
        samples.add(Sample(at, 0, ()))
    times = [sample.time_us for sample in samples]
    assert len(times) <= 4097
    assert samples.count == 50_000
    assert {later - earlier for earlier, later in pairwise(times)} == {16}


def test_it_starts_again_and_twice_is_once() -> None:
    monitor = Monitor(0.01)
    before = threading.active_count()
    assert monitor.start() is monitor.start()
    assert threading.active_count() == before + 1
    monitor.stop()
    monitor.stop()
    assert threading.active_count() == before
    monitor.start()
    wait_for_samples(monitor, 2)
    monitor.stop()


def test_an_error_in_the_block_is_the_programs_own() -> None:
    with pytest.raises(KeyError), Monitor(0.01):
        raise KeyError("mine")


def test_a_forked_child_is_not_followed() -> None:
    monitor = Monitor(0.01).start()
    pid = os.fork()
    if pid == 0:
        monitor.step()
        monitor.sample()
        monitor.stop()
        os._exit(0 if threading.active_count() == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    monitor.stop()


def test_random_numbers_stay_as_they_are() -> None:
    import numpy as np

    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    plain = [random.random(), float(np.random.rand())]  # noqa: NPY002
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    with Monitor(0.01, alerts=["rss > 1MiB"], quiet=True) as monitor:
        wait_for_samples(monitor, 2)
    assert [random.random(), float(np.random.rand())] == plain  # noqa: NPY002


def test_it_imports_neither_torch_nor_numpy_nor_rich() -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from vramlens.monitor import Monitor; m = Monitor(0.01, alerts=['used > 1%'])"
        "; m.start(); m.step(); m.stop(); m.summary(); print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "vramlens.monitor" in loaded
    assert {"torch", "numpy", "rich", "textual", "urllib.request"}.isdisjoint(loaded)


def test_a_program_that_never_stops_it_ends_all_the_same(tmp_path: Path) -> None:
    """Even while a sample is taken, an alert's command hangs, and a child was forked that ends
    by itself.
    """
    slow = tmp_path / "slow.sh"
    slow.write_text("#!/bin/sh\nsleep 4\n")
    slow.chmod(0o700)
    program = f"""
import os, sys, time
sys.path.insert(0, {str(SOURCE)!r})
from vramlens.monitor import Monitor
monitor = Monitor(0.01, alerts=["rss > 1B"], command={str(slow)!r}, quiet=True).start()
monitor.on_sample(lambda sample: time.sleep(30))
while not monitor.alerts:
    time.sleep(0.01)
pid = os.fork()
if pid == 0:
    monitor.step()
    sys.exit(7)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    no_warning_of_fork = ["-W", "ignore:This process:DeprecationWarning"]  # of Python 3.12 on
    done = subprocess.run(
        [sys.executable, *no_warning_of_fork, "-c", program],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


def test_with_the_real_torch_cuda_is_not_initialised_and_its_numbers_stay() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    plain = torch.rand(3)
    torch.manual_seed(0)
    with Monitor(0.01) as monitor:
        wait_for_samples(monitor, 2)
        monitor.step()
    assert torch.equal(torch.rand(3), plain)
    assert not torch.cuda.is_initialized()
    assert torch.initial_seed() == 0
