"""Growth from samples: told when it is there, whatever the sawtooth; not told when it is not."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.recordings import data_of
from support.vram_files import META, vram
from vramlens import load
from vramlens.analyses.failure.failed_request import Outside
from vramlens.analyses.finding import Finding
from vramlens.analyses.leaks.recorded_leaks import leaks_of_trace
from vramlens.analyses.leaks.sampled_growth import SampledGrowth, growth_of
from vramlens.trace import Samples
from vramlens.units import GIB, MIB

COLUMNS = [
    "time_us",
    "step",
    "device",
    "allocated_bytes",
    "reserved_bytes",
    "free_bytes",
    "host_rss_bytes",
]


def samples(
    held: list[int],
    *,
    steps: bool = True,
    every: int = 10,
    free: int | None = None,
    reserved: int = 0,
) -> dict[str, Any]:
    rows = [
        [1_000_000 * 30 * i, every * i if steps else 0, 0, size, reserved or size, free, 0]
        for i, size in enumerate(held)
    ]
    return {"interval_s": 30.0, "columns": COLUMNS, "rows": rows}


def of(value: dict[str, Any]) -> Samples:
    table = np.array(
        [[-1 if cell is None else cell for cell in row] for row in value["rows"]], np.int64
    )
    return Samples(30.0, *(table[:, i] for i in range(len(COLUMNS))))


def judged(value: dict[str, Any], **outside: int) -> SampledGrowth | None:
    return growth_of(of(value), Outside(**outside))


def sawtooth(
    count: int, a_step: float, *, tooth: int = 7, high: int = GIB, base: int = 2 * GIB
) -> list[int]:
    return [int(base + 10 * a_step * i + high * (i % tooth) / tooth) for i in range(count)]


@pytest.mark.parametrize("tooth", [1, 2, 7, 13])
@pytest.mark.parametrize("a_step", [MIB // 2, 3 * MIB])
def test_growth_under_a_sawtooth(tooth: int, a_step: int) -> None:
    growth = judged(samples(sawtooth(200, a_step, tooth=tooth)))
    assert growth is not None
    assert growth.unit == "step"
    assert abs(growth.per_unit_bytes - a_step) < 0.2 * a_step
    assert abs(growth.bytes - a_step * (growth.last - growth.first)) <= 0.2 * growth.bytes


@pytest.mark.parametrize("count", [18, 40, 90, 500])
@pytest.mark.parametrize("tooth", [1, 2, 7, 13, 20])
def test_a_sawtooth_alone_does_not_grow(tooth: int, count: int) -> None:
    assert judged(samples(sawtooth(count, 0, tooth=tooth))) is None


@given(st.integers(0, 2**32), st.integers(20, 300), st.floats(0, 0.3))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_noise_alone_does_not_grow(seed: int, count: int, noise: float) -> None:
    draw = random.Random(seed)
    assert (
        judged(samples([int(4 * GIB * (1 + noise * draw.random())) for _ in range(count)])) is None
    )


@given(st.integers(0, 2**32), st.integers(60, 300))
@settings(max_examples=40, deadline=None)
def test_growth_within_noise_is_found(seed: int, count: int) -> None:
    draw = random.Random(seed)
    held = [2 * GIB + 20 * MIB * i + draw.randrange(GIB // 8) for i in range(count)]
    growth = judged(samples(held))
    assert growth is not None
    assert abs(growth.per_unit_bytes - 2 * MIB) < 0.4 * MIB


@pytest.mark.parametrize(
    "held",
    [
        [MIB, *[4 * GIB] * 99],  # the program's beginning
        [GIB] * 50 + [4 * GIB] * 50,  # one step up, and it stays
        [GIB + min(i, 30) * 50 * MIB for i in range(100)],  # warming up, then flat
        [4 * GIB - i * 20 * MIB for i in range(100)],  # falling
        [4 * GIB + i * 10_000 for i in range(100)],  # too little to matter
        [GIB + (i // 25) * 512 * MIB for i in range(100)],  # a few steps up
        [0] * 100,
        [GIB] * 5,
        [],
    ],
)
def test_what_is_no_growth(held: list[int]) -> None:
    if held:
        assert judged(samples(held)) is None


def test_by_the_minute_where_steps_are_not_counted() -> None:
    growth = judged(samples(sawtooth(100, MIB), steps=False))
    assert growth is not None
    assert growth.unit == "minute"
    assert abs(growth.per_unit_bytes - 20 * MIB) < 2 * MIB  # 10 MiB a sample, every 30 s


@pytest.mark.parametrize(
    ("free", "reserved", "outside", "room"),
    [
        (None, 0, {}, None),
        (None, 0, {"total_bytes": 80 * GIB}, 80 * GIB),
        (4 * GIB, 20 * GIB, {"total_bytes": 80 * GIB}, 24 * GIB),
        (40 * GIB, 8 * GIB, {"total_bytes": 80 * GIB, "limit_bytes": 10 * GIB}, 10 * GIB),
    ],
)
def test_how_long_it_can_go_on(
    free: int | None, reserved: int, outside: dict[str, int], room: int | None
) -> None:
    held = sawtooth(100, MIB)
    growth = judged(samples(held, free=free, reserved=reserved), **outside)
    assert growth is not None
    assert (growth.left is None) == (room is None)
    if growth.left is not None and room is not None:
        assert growth.left == pytest.approx((room - max(held[-7:])) / MIB, rel=0.1)


def found(path: Path) -> Finding | None:
    return next((f for f in load(path).explain().findings if f.id == "sampled_growth"), None)


def test_one_finding_where_the_ring_wrapped(tmp_path: Path) -> None:
    data = data_of("found/wrapped")
    wrapped = {"wrapped": {"0": True}, "devices": {}}
    lasting = found(
        vram(
            tmp_path / "b.vram",
            data,
            wrapped,
            samples=samples(sawtooth(200, MIB), free=99 * GIB, reserved=GIB),
        )
    )
    assert lasting is not None
    assert "out of memory" not in lasting.title
    assert any("runs out after about" in text for text in lasting.evidence)
    grows = samples(sawtooth(200, MIB), free=8 * GIB, reserved=8 * GIB)
    finding = found(vram(tmp_path / "a.vram", data, wrapped, samples=grows))
    assert finding is not None
    assert finding.verdict == "likely"
    assert "out of memory in about" in finding.title
    assert finding.fix
    assert (
        found(vram(tmp_path / "a.vram", data, wrapped, samples=samples(sawtooth(200, 0)))) is None
    )
    assert found(vram(tmp_path / "a.vram", data, wrapped)) is None


def test_nothing_where_the_events_tell_it_all(tmp_path: Path) -> None:
    grows = samples(sawtooth(200, MIB))
    for row in grows["rows"]:
        row[0] //= 10**9  # all within the events' time
    assert (
        found(
            vram(
                tmp_path / "a.vram",
                data_of("found/wrapped"),
                {"wrapped": {"0": False}},
                samples=grows,
            )
        )
        is None
    )
    assert META["wrapped"] == {"0": False}


def test_a_leak_that_the_events_show_is_not_claimed_twice(tmp_path: Path) -> None:
    bare = load(vram(tmp_path / "a.vram", data_of("recordings/leak_outputs"))).explain()
    (leak,) = bare.leaks
    grows = samples(sawtooth(400, leak.bytes_per_step, high=0))
    path = vram(
        tmp_path / "b.vram",
        data_of("recordings/leak_outputs"),
        {"wrapped": {"0": True}},
        samples=grows,
    )
    finding = found(path)
    assert finding is not None
    assert finding.place == leak.place
    assert finding.bytes is not None
    growth = judged(grows)
    assert growth is not None
    assert finding.bytes == growth.bytes - leak.bytes


def test_what_grows_outside_pytorch_is_not_the_same_growth(tmp_path: Path) -> None:
    """The samples rise alike inside of the allocator and beside it; a gpt's events show neither."""
    grows = samples(sawtooth(200, 16 * MIB, high=0), reserved=20 * GIB)
    for i, row in enumerate(grows["rows"]):
        row[5] = 99 * GIB - 160 * MIB * i
    path = vram(
        tmp_path / "a.vram", data_of("recordings/gpt"), {"wrapped": {"0": True}}, samples=grows
    )
    finding = found(path)
    assert finding is not None
    assert not any("show the same growth" in text for text in finding.evidence)
    report = leaks_of_trace(load(path))
    (outside,) = [leak for leak in report.leaks if leak.kind == "external"]
    assert outside.bytes_per_step == pytest.approx(16 * MIB, rel=0.05)
    (sampled,) = report.devices[0].findings
    assert sampled == finding


def test_what_grows_by_the_minute_is_not_said_to_grow_by_the_step(tmp_path: Path) -> None:
    grows = samples(sawtooth(200, 0, high=0), steps=False, reserved=GIB * 3)
    for i, row in enumerate(grows["rows"]):
        row[5] = 99 * GIB - 160 * MIB * i
    path = vram(
        tmp_path / "a.vram", data_of("recordings/gpt"), {"wrapped": {"0": True}}, samples=grows
    )
    (finding,) = [one for one in load(path).explain().findings if one.id == "leak"]
    assert finding.title.endswith(" over the recording, outside PyTorch")
    assert finding.fix is not None
    assert "per step" not in f"{finding.title} {finding.fix}"
