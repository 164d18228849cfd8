"""Growth that no chain explains: which counter makes which class, and what must not alarm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import vramlens  # noqa: E402
from live.counted_gpu import MIB, CountedGpu  # noqa: E402
from vramlens.ground.place import Place  # noqa: E402
from vramlens.leak.fixes import FIXES  # noqa: E402
from vramlens.live.counters import gpu_memory as gpus  # noqa: E402
from vramlens.live.counters.step_counters import CounterSeries, StepCounters  # noqa: E402
from vramlens.live.heap.search import Search  # noqa: E402
from vramlens.live.heap.tensors import loaded  # noqa: E402
from vramlens.live.holder.keeper import Statements  # noqa: E402
from vramlens.live.leaks.leak_report import LiveLeak  # noqa: E402
from vramlens.live.leaks.uncounted import counted_leaks  # noqa: E402

STEPS = 20
Step = Callable[[CountedGpu, int], None]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> CountedGpu:
    fake = CountedGpu(devices=2)
    monkeypatch.setattr(gpus, "find_gpu", lambda _torch: fake)
    for ration in ("_FREE_SECONDS", "_DRIVER_FREE_SECONDS"):  # of a busy machine's time
        monkeypatch.setattr(f"vramlens.live.counters.step_counters.{ration}", 60.0)
    return fake


def seen(
    gpu: CountedGpu,
    step: Step,
    *,
    steps: int = STEPS,
    known: int | None = None,
    owned_per_step: int = 0,
) -> list[LiveLeak]:
    """What is said after steps.

    Args:
        known: what a search would have found on the GPU; by default all.
        owned_per_step: of that, what a leak with an owner adds in each step.
    """
    counters = StepCounters(torch)
    for number in range(1, steps + 1):
        step(gpu, number)
        counters.read(number)
    objects = loaded()
    assert objects is not None
    search = Search(objects)
    found = gpu.allocated[0] if known is None else known
    owned = LiveLeak(
        verdict="proven", kind="container", place=Place("train.py", 1, "step"), bytes_per_step=owned_per_step,
        bytes=steps * owned_per_step, steps=steps, first_step=2, last_step=steps, storages=steps, device="cuda:0",
    )  # fmt: skip
    leaks = [owned] if owned_per_step else []
    return counted_leaks(counters, search, Statements(search), {"cuda:0": found}, leaks)


def grow_pinned(gpu: CountedGpu, _number: int) -> None:
    gpu.handed_out += 3 * MIB
    gpu.kept += 4 * MIB


def keep_pinned(gpu: CountedGpu, _number: int) -> None:
    gpu.kept += 2 * MIB


def wait_for_a_stream(gpu: CountedGpu, _number: int) -> None:
    gpu.waits[0] += 5 * MIB


def new_stream(gpu: CountedGpu, number: int) -> None:
    gpu.reserve(20, stream=number)


def new_pool(gpu: CountedGpu, number: int) -> None:
    gpu.reserve(32, pool=(0, number), active_mib=1)


def new_group(gpu: CountedGpu, _number: int) -> None:
    gpu.beside[0] += 6 * MIB
    gpu.groups += 1


def hidden_tensor(gpu: CountedGpu, _number: int) -> None:
    gpu.allocated[0] += 4 * MIB
    gpu.reserved[0] += 4 * MIB


@pytest.mark.parametrize(
    ("step", "kind", "verdict", "mib", "word"),
    [
        (grow_pinned, "pinned", "likely", 3, "71,303,168 B) of the host's pinned memory"),
        (keep_pinned, "pinned", "possible", 2, "is never returned"),
        (
            wait_for_a_stream,
            "stream",
            "likely",
            5,
            "100.00 MiB (104,857,600 B) is freed but waits for another stream",
        ),
        (new_stream, "stream", "likely", 20, "20 streams beside the default one hold 400.00 MiB"),
        (
            new_pool,
            "pool",
            "likely",
            32,
            "20 private pools (CUDA graphs, MemPools) hold 620.00 MiB",
        ),
        (
            new_group,
            "external",
            "likely",
            6,
            "there were 1 process groups when the watch began, now there are 21",
        ),
        (hidden_tensor, "other", "likely", 4, "kept by a C++ object that Python cannot see"),
    ],
)
def test_each_class(
    gpu: CountedGpu, step: Step, kind: str, verdict: str, mib: int, word: str
) -> None:
    (leak,) = seen(gpu, step, known=100 * MIB)
    assert (leak.kind, leak.verdict, leak.bytes_per_step) == (kind, verdict, mib * MIB)
    assert leak.bytes == (STEPS - 1) * mib * MIB  # without the first, which warms up
    assert any(word in sentence for sentence in leak.why), leak.why
    assert leak.fix in FIXES.values()


def test_the_owner_of_what_no_search_found_may_be_autocast(gpu: CountedGpu) -> None:
    with torch.autocast("cpu"), torch.autocast("cpu"):
        (leak,) = seen(gpu, hidden_tensor, known=100 * MIB)
    assert leak.kind == "cache"
    assert "in 2 torch.autocast blocks" in leak.why[0]
    for off in ({"cache_enabled": False}, {"enabled": False}):
        with torch.autocast("cpu", **off):
            (leak,) = seen(gpu, hidden_tensor, known=100 * MIB)
        assert leak.kind == "other"


def test_autocast_of_an_intel_gpu_counts_as_well(gpu: CountedGpu) -> None:
    was = torch.is_autocast_enabled("xpu")
    torch.autocast_increment_nesting()  # what entering torch.autocast("xpu") does where there is one
    torch.set_autocast_enabled("xpu", True)
    try:
        (leak,) = seen(gpu, hidden_tensor, known=100 * MIB)
    finally:
        torch.set_autocast_enabled("xpu", was)
        torch.autocast_decrement_nesting()
    assert leak.kind == "cache"


def test_workspaces_that_no_search_finds_are_no_second_owner(gpu: CountedGpu) -> None:
    """cuBLAS's 64 MiB are as hidden as a leak's bytes: what grew has its owner."""
    kept = STEPS * 4 * MIB
    assert seen(gpu, hidden_tensor, known=36 * MIB + kept, owned_per_step=4 * MIB) == []
    (leak,) = seen(gpu, hidden_tensor, known=36 * MIB, owned_per_step=MIB)
    assert leak.kind == "other"


def test_without_the_drivers_list_of_processes_it_is_possible(gpu: CountedGpu) -> None:
    gpu.is_own = False
    (leak,) = seen(gpu, new_group)
    assert leak.verdict == "possible"
    assert "another process on this GPU looks the same" in leak.why[-1]


def test_a_context_on_another_device(gpu: CountedGpu) -> None:
    def step(gpu: CountedGpu, number: int) -> None:
        gpu.used = [0, 1] if number >= 3 else [0]

    (leak,) = seen(gpu, step)
    assert (leak.kind, leak.verdict, leak.bytes, leak.bytes_per_step) == (
        "context",
        "possible",
        500 * MIB,
        0,
    )
    assert "context on cuda:1 since step 3" in leak.why[0]
    assert "set_device" in leak.fix


def once(gpu: CountedGpu, number: int) -> None:
    """What the second step makes: optimizer state, cuBLAS workspaces, kernels that are loaded."""
    if number == 2:
        gpu.allocated[0] += 8_519_680
        gpu.reserve(24)
        gpu.beside[0] += 60 * MIB
        grow_pinned(gpu, number)


def filling(gpu: CountedGpu, number: int) -> None:
    """Caches that fill in half of the steps."""
    if number <= STEPS // 2:
        new_pool(gpu, number)
        grow_pinned(gpu, number)
        new_group(gpu, number)


def sawtooth(gpu: CountedGpu, number: int) -> None:
    gpu.allocated[0] = (100 + 10 * (number % 6)) * MIB
    gpu.waits[0] = 10 * (number % 6) * MIB
    gpu.handed_out = (8 + number % 6) * MIB
    gpu.beside[0] = (500 + 8 * (number % 6)) * MIB


def larger_batches(gpu: CountedGpu, number: int) -> None:
    """Now and then a larger one: the cache keeps the size of the largest."""
    if number in (3, 4, 6, 11):
        gpu.reserve(64)


def jitter(gpu: CountedGpu, number: int) -> None:
    gpu.beside[0] = (500 + (number * 7919) % 23) * MIB
    gpu.waits[0] = (number * 104729) % 31 * MIB


@pytest.mark.parametrize(
    "step", [once, filling, sawtooth, larger_batches, jitter, lambda _gpu, _number: None]
)
def test_look_alikes(gpu: CountedGpu, step: Step) -> None:
    assert [leak.kind for leak in seen(gpu, step) if leak.sure or leak.verdict == "possible"] == []


def test_reserved_memory_alone_is_the_cache(gpu: CountedGpu) -> None:
    def step(gpu: CountedGpu, _number: int) -> None:
        gpu.reserve(16)

    (leak,) = seen(gpu, step)
    assert leak.verdict == "not a problem"
    assert "PyTorch's cache" in leak.why[0]
    gpu.parts = None
    (leak,) = seen(gpu, step)
    assert "this version of PyTorch cannot cheaply tell" in leak.why[0]


def test_two_streams_that_are_used_again_are_none(gpu: CountedGpu) -> None:
    assert [
        leak.verdict for leak in seen(gpu, lambda gpu, number: gpu.reserve(16, stream=number % 2))
    ] == ["not a problem"]


def test_what_a_chain_explains_is_told_once(gpu: CountedGpu) -> None:
    assert seen(gpu, hidden_tensor) == []  # the search found the tensors


def test_too_few_steps(gpu: CountedGpu) -> None:
    assert seen(gpu, new_pool, steps=6) == []


def test_a_counter_that_fails_is_left_out(gpu: CountedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_device: int) -> Any:
        raise RuntimeError("pluggable")

    monkeypatch.setattr(gpu, "counts", fails)
    kept = []
    watch = vramlens.LeakWatch()
    for _ in range(8):
        kept.append(torch.zeros(1000))
        watch.step()
    (leak,) = watch.report().found
    assert leak.kind == "container"


def test_the_report_names_them_and_their_device(gpu: CountedGpu) -> None:
    watch = vramlens.LeakWatch()
    for number in range(1, STEPS + 1):
        new_pool(gpu, number)
        watch.step()
    text = str(watch.report())
    assert text.startswith("LEAK likely: 32.00 MiB per step, 608.00 MiB so far\n")
    assert "nothing keeps it, but no other stream or pool can use it" in text
    assert "graph.reset()" in text
    (entry,) = (leak for leak in watch.report().to_dict()["leaks"] if leak["class"] == "pool")
    assert (entry["device"], entry["owner"]) == ("cuda:0", None)


@pytest.mark.timed
def test_counters_are_rationed(gpu: CountedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramlens.live.counters.step_counters._FREE_SECONDS", 0.0)
    monkeypatch.setattr("vramlens.live.counters.step_counters._SHARE", 1e-12)
    counters = StepCounters(torch)
    for number in range(1, 100):
        counters.read(number)
    assert gpu.asked <= 2


@given(st.lists(st.integers(1, 60), min_size=14, max_size=60))
def test_readings_may_lie_any_steps_apart(gaps: list[int]) -> None:
    series, step = CounterSeries(), 0
    for gap in gaps:
        series.add(step, 7 * step)
        step += gap
    pace = series.pace()
    assert pace is not None
    assert pace.bytes_per_step == 7
    assert series.steps[0] < pace.first < pace.last == series.steps[-2]


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=60))
def test_left_behind_is_what_nothing_later_fell_below(values: list[int]) -> None:
    series = CounterSeries()
    for step, value in enumerate(values):
        series.add(step, value)
    slow = {
        step: min(values[step:]) - min(values[step - 1 :])
        for step in range(2, len(values))
        if min(values[step:]) > min(values[step - 1 :])
    }
    assert series.left_behind() == slow


def test_a_long_series_keeps_its_ends() -> None:
    series = CounterSeries()
    for step in range(5000):
        series.add(step, 10 * step)
    assert len(series.steps) <= 512
    assert series.steps[0] == 0
    assert series.values[-1] > 49_000
    pace = series.pace()
    assert pace is not None
    assert pace.bytes_per_step == pytest.approx(10, rel=0.02)
