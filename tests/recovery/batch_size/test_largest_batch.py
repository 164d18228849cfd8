"""find_batch_size: the mathematics against slow truth, and whole searches on a simulated device."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from recovery.allocated import Allocated
from recovery.training import mean_loss, net
from support.replay_oracle import SlowAllocator
from vramlens.errors import UsageError
from vramlens.recovery import AdaptiveBatchLoader, find_batch_size
from vramlens.recovery.batch_size.largest_batch import (
    BatchSize,
    _by_replay,
    likely_size,
    search,
    sure_size,
)
from vramlens.recovery.batch_size.peak_fit import PeakFit, Probe, length_cost
from vramlens.recovery.batch_size.scaled_requests import requests_of_snapshot
from vramlens.recovery.meters import CountingMeter

PHASES = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**7)), min_size=1, max_size=5)


def peak(persistent: int, phases: list[tuple[int, int]], size: float) -> float:
    return max(persistent + fixed + each * size for fixed, each in phases)


@given(
    PHASES,
    st.integers(0, 10**9),
    st.lists(st.integers(1, 500), min_size=1, max_size=3, unique=True),
    st.integers(1, 9),
)
@settings(max_examples=300, deadline=None)
def test_the_bounds_hold_for_every_convex_peak(
    phases: list[tuple[int, int]], persistent: int, sizes: list[int], factor: int
) -> None:
    probes = tuple(Probe(n, 0, int(peak(persistent, phases, n))) for n in sorted(sizes))
    fit = PeakFit(persistent, 0, probes)
    beyond = probes[-1].size * factor
    truth = peak(persistent, phases, beyond)
    assert fit.low_bytes(beyond) <= truth * (1 + 1e-9) + 1
    assert fit.high_bytes(beyond) >= truth * (1 - 1e-9) - 1
    limit = truth
    if limit >= probes[-1].peak_bytes:
        low, high = fit.largest(limit)
        assert low <= beyond * (1 + 1e-6) + 1e-3 or truth <= probes[-1].peak_bytes * (1 + 1e-9)
        assert high >= beyond * (1 - 1e-6) - 1e-3


@given(PHASES, st.integers(1, 10**9), st.floats(1.2, 100))
@settings(max_examples=300, deadline=None)
def test_no_jump_to_85_percent_of_the_upper_bound_passes_the_limit(
    phases: list[tuple[int, int]], persistent: int, room: float
) -> None:
    first = Probe(1, 0, int(peak(persistent, phases, 1)))
    limit = first.peak_bytes * room
    probes = [first]
    for _ in range(3):
        size = int(min(PeakFit(persistent, 0, tuple(probes)).largest(0.85 * limit)[0], 1e9))
        if size <= probes[-1].size:
            break
        measured = peak(persistent, phases, size)
        assert measured <= 0.85 * limit * (1 + 1e-9) + size + 1
        probes.append(Probe(size, 0, int(measured)))


def test_lines_through_small_probes_are_too_low() -> None:
    """The figures of a GPT (fake tensors, MiB by batch): why a line from sizes 1 and 2 is 80%
    too low at 64.
    """
    measured = {1: 673.6, 2: 673.6, 4: 673.6, 8: 809.7, 16: 1215.4, 32: 2026.6, 64: 3649.0}
    small = PeakFit(450, 0, (Probe(1, 0, 674), Probe(2, 0, 674)))
    assert small.low_bytes(64) < 0.2 * measured[64]
    assert small.high_bytes(64) > measured[64]
    large = PeakFit(450, 0, (Probe(16, 0, 1215), Probe(32, 0, 2027)))
    assert large.low_bytes(64) == pytest.approx(measured[64], rel=0.001)


def largest_by_trial(build: Any, make_batch: Any, loss_fn: Any, capacity: int, most: int) -> int:
    """Bisection by real failures on the simulated device: slow, and the truth."""

    def fits(size: int) -> bool:
        with CountingMeter(capacity) as meter:
            try:
                model, optimizer = build()
                for _ in range(2):
                    result = loss_fn(model, make_batch(size))
                    result.backward()
                    optimizer.step()
                    optimizer.zero_grad()
            except torch.OutOfMemoryError:
                return False
        assert meter.failures == 0
        return True

    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def transformer() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = net(torch.float32, width=64, vocabulary=512, blocks=3)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def token_batch(size: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 512, (size, 16))
    return {"ids": ids, "labels": ids}


def convolutions() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2), nn.Flatten(),
        nn.Linear(16 * 49, 300),
    )  # fmt: skip
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def wide() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 1500), nn.ReLU(), nn.Linear(1500, 64))
    return model, torch.optim.AdamW(model.parameters(), foreach=True)


def image_loss(model: Any, batch: Any) -> torch.Tensor:
    return model(batch).square().mean()


@pytest.mark.parametrize(
    ("build", "make_batch", "loss_fn", "capacity"),
    [
        (transformer, token_batch, mean_loss, 40_000_000),
        (transformer, token_batch, mean_loss, 14_000_000),
        (convolutions, lambda n: torch.randn(n, 3, 16, 16), image_loss, 30_000_000),
        (wide, lambda n: torch.randn(n, 64), image_loss, 30_000_000),
    ],
)
def test_within_five_percent_of_the_truth_in_three_probes_without_a_failure(
    build: Any, make_batch: Any, loss_fn: Any, capacity: int
) -> None:
    truth = largest_by_trial(build, make_batch, loss_fn, capacity, 4000)
    with CountingMeter(capacity) as meter:
        model, optimizer = build()
        found = find_batch_size(model, make_batch, loss_fn, optimizer, meter=meter)
    assert meter.failures == found.failures == 0
    assert len(found.probes) <= 3
    assert found.size <= truth
    assert found.size >= 0.95 * truth - 1
    assert found.low <= truth <= (found.high or truth)
    assert str(found).startswith(f"The largest batch is {found.size:,}")


def test_everything_is_as_before() -> None:
    with CountingMeter(30_000_000) as meter:
        model, optimizer = convolutions()
        image_loss(model, torch.randn(2, 3, 16, 16)).backward()
        before = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
        gradients = [p.grad.clone() for p in model.parameters()]
        random = torch.get_rng_state()
        find_batch_size(
            model, lambda n: torch.randn(n, 3, 16, 16), image_loss, optimizer, meter=meter
        )
        assert torch.equal(random, torch.get_rng_state())
        assert all(
            torch.equal(before[0][name], value) for name, value in model.state_dict().items()
        )
        assert optimizer.state_dict()["state"] == before[1]["state"] == {}
        assert all(
            torch.equal(a, p.grad) for a, p in zip(gradients, model.parameters(), strict=True)
        )


def test_not_even_one() -> None:
    with CountingMeter(2_000_000) as meter:
        model, optimizer = wide()
        found = find_batch_size(
            model, lambda n: torch.randn(n * 1000, 64), image_loss, optimizer, meter=meter
        )
    assert found.size == 0
    assert found.failures == 2  # with two samples, and with one
    assert str(found).startswith("Not even a single sample fits")
    assert found.findings[0].verdict == "proven"


def test_a_cap_and_a_given_limit() -> None:
    with CountingMeter(10**9) as meter:
        model, optimizer = wide()
        found = find_batch_size(
            model,
            lambda n: torch.randn(n, 64),
            image_loss,
            optimizer,
            meter=meter,
            limit="30MB",
            largest=100,
        )
    assert found.size == 100
    assert found.limited_by == "largest=100"
    with pytest.raises(UsageError, match="the model is on the CPU: run it where"):
        find_batch_size(model, lambda n: torch.randn(n, 64), image_loss)


@pytest.mark.parametrize("limit", [None, "1GiB"])
@pytest.mark.parametrize("meter", [None, CountingMeter()])  # not entered: it counts nothing
def test_where_bytes_are_not_counted_one_line_says_so(
    limit: str | None, meter: CountingMeter | None
) -> None:
    model, optimizer = wide()
    with pytest.raises(UsageError) as refused:
        find_batch_size(
            model,
            lambda n: torch.randn(n, 64),
            image_loss,
            optimizer,
            limit=limit or (meter and "9GiB"),
            meter=meter,
        )
    assert str(refused.value) == (
        f"find_batch_size: {'bytes are not counted on this device' if meter else 'the model is on the CPU'}:"
        ' run it where the model trains, on a GPU, or pass device="predicted", limit="24GiB"'
    )


def test_no_limit_is_known() -> None:
    with CountingMeter() as meter, pytest.raises(UsageError, match="limit='22GiB'"):
        find_batch_size(wide()[0], lambda n: torch.randn(n, 64), image_loss, meter=meter)


def test_cost_by_length() -> None:
    cost = length_cost([(100, 100 * (7 + 0.5 * 100)), (50, 50 * (7 + 0.5 * 50))])
    assert cost(10) == pytest.approx(10 * (7 + 5))
    assert length_cost([(100, 5700)])(50) >= 50 * (7 + 25)


# What an H200 measured (docs/guard.md): persistent MiB, bytes of the last probe, MiB a sample; the
# limit is 6 GiB.
MEASURED = {
    "gpt": (477.64, (2, 793_846_272), (48, 5_300_142_592, 555_105_792), 95.26, 52),
    "gpt bf16": (1280.0, (2, 2_200_978_432), (11, 4_582_756_864, 1_060_679_680), 264.34, 12),
    "encoder": (978.0, (27, 3_926_094_848), (41, 5_421_949_952, 246_296_576), 101.9, 50),
}


@pytest.mark.parametrize("name", MEASURED)
def test_what_a_gpu_measured_is_not_passed_and_the_error_bar_holds_the_truth(name: str) -> None:
    persistent, small, (size, peak_bytes, waste), slope, truth = MEASURED[name]
    before = int(peak_bytes - (size - small[0]) * slope * 2**20)
    step = small[1] if small[0] == 2 else 0
    probes = (Probe(small[0], 0, before, step), Probe(size, 0, peak_bytes, step, 0, 0, waste))
    fit = PeakFit(int(persistent * 2**20), int(persistent * 2**20 / 3), probes)
    limit = 6 * 2**30
    assert 0.93 * truth <= int(likely_size(fit, limit)) <= truth
    assert int(sure_size(fit, limit)) <= truth <= fit.largest(limit)[1] + 1


def test_batches_are_filled_beside_what_is_lost() -> None:
    """The loader's batches, too: with a line through live bytes alone 6 GiB would seem to hold
    58 samples, not 52.
    """
    probes = (Probe(2, 0, 705_000_000), Probe(48, 0, 5_300_142_592, 0, 0, 0, 555_105_792))
    fit = PeakFit(int(477.64 * 2**20), 167_000_000, probes)
    limit = 6 * 2**30
    found = BatchSize(
        52, 52, 59, limit, "", "backward", 0, 0, fit.persistent_bytes, 0.8, probes, 0, fit
    )
    even = AdaptiveBatchLoader(list(range(500)), limit, found=found)
    assert len(next(iter(even))) == 52
    half = AdaptiveBatchLoader(list(range(500)), limit // 2, found=found)
    assert len(next(iter(half))) == int(likely_size(fit, limit // 2)) < 29
    ragged = AdaptiveBatchLoader(
        list(range(500)), limit, found=found, length_fn=lambda _: 100, longest=100, collate_fn=list
    )
    assert len(next(iter(ragged))) == 52


@pytest.mark.parametrize(
    ("parameters", "layers", "each", "head"),
    [
        (80, 12, 3.1, 20),
        (400, 10, 16.3, 60),
        (300, 24, 2.2, 2),
        (10, 30, 7.3, 0.5),
        (600, 12, 9.7, 40),
    ],
)
@pytest.mark.parametrize("limit_gib", [4, 6, 16])
@pytest.mark.parametrize("is_recorded", [True, False])
def test_with_pytorchs_allocator_the_answer_fits_and_little_is_lost(
    limit_gib: int, parameters: int, layers: int, each: float, head: float, is_recorded: bool
) -> None:
    sizes = parameters << 20, layers, int(each * 2**20), int(head * 2**20)
    device = Allocated(limit_gib << 30, *sizes, is_recorded=is_recorded)
    found = search(device, None, device.limit, "", None, 2)
    assert found.replayed == is_recorded
    assert (
        found.failures <= 1 - is_recorded
    )  # the second probe knows only what the first, of two samples, has lost
    device.is_recorded = False
    low, high = 1, max(2, found.size * 2)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if device.probe(middle, None) is not None else (low, middle)
    assert found.size <= low + 1 - is_recorded  # near the limit the allocator decides
    assert found.size >= (0.98 if is_recorded else 0.93) * low - 1
    assert found.low <= low + 1
    assert found.high is None or found.high >= low - 1


def contrastive_loss(model: Any, batch: Any) -> torch.Tensor:
    """Each sample against each other: its memory grows with the square of the batch."""
    found = model(batch)
    return torch.log_softmax(found @ found.T, -1).diagonal().neg().mean()


@pytest.mark.parametrize("capacity", [60_000_000, 200_000_000])
def test_where_the_last_probe_fails_the_answer_is_what_was_measured(capacity: int) -> None:
    with CountingMeter(capacity) as meter:
        model, optimizer = wide()
        found = find_batch_size(
            model, lambda n: torch.randn(n, 64), contrastive_loss, optimizer, meter=meter
        )
    assert found.failures == 1
    assert found.size == found.low == found.probes[-1].size
    assert found.high is not None
    assert found.high > found.size
    assert "failed, unlike the prediction from smaller batches" in str(found)


class Steep:
    """A device without end; what a sample takes grows with the batch, so that no line through
    two probes holds.
    """

    persistent_bytes, gradient_bytes, failures = 0, 0, 0

    def probe(self, size: int, make_batch: Any) -> Probe:
        del make_batch
        size_bytes = size**4 << 10
        memory = SlowAllocator()
        memory.malloc(size_bytes)
        requests = requests_of_snapshot(memory.recording(""), size, 0, "2.11.0")
        return Probe(
            size, size_bytes, size_bytes, size_bytes, 0, memory.peak_reserved, requests=requests
        )


def test_an_estimate_that_is_far_off_bounds_nothing_from_below() -> None:
    device: Any = Steep()
    probes = tuple(device.probe(size, None) for size in (2, 4, 20))
    limit = probes[-1].reserved_bytes
    found = _by_replay(PeakFit(0, 0, probes), limit)
    assert found is not None
    assert found.low == found.size == 20


def test_what_probes_asked_for_is_not_kept() -> None:
    device = Allocated(4 << 30, 80 << 20, 12, 3 << 20, 20 << 20, is_recorded=True)
    found = search(device, None, device.limit, "", None, 2)
    assert found.replayed
    assert found.fit is not None
    assert all(probe.requests is None for probe in (*found.probes, *found.fit.probes))
