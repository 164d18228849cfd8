"""Requests continued to other sizes: against those that a step of that size really makes."""

from __future__ import annotations

import lzma
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.recordings import event, snapshot
from support.replay_oracle import SlowAllocator
from vramlens.recovery.batch_size.scaled_requests import (
    StepRequests,
    requests_of_snapshot,
    scaled_requests,
)
from vramlens.units import GIB, KIB, MIB

AFFINE = st.tuples(st.integers(1, 3 * MIB), st.integers(0, 2 * MIB), st.booleans())
"""Bytes at size 0, bytes a sample, and whether it is freed before the next request."""


def recorded(
    asked: list[tuple[int, int, bool]], size: int, limit: int = 2**62
) -> tuple[StepRequests, SlowAllocator]:
    """A program of such requests, some of them freed at once, the others in the order in which
    they came.
    """
    memory = SlowAllocator(cap=limit)
    kept = []
    for fixed, each, is_short in asked:
        address = memory.malloc(fixed + each * size)
        assert address is not None
        if is_short:
            memory.free(address)
        else:
            kept.append(address)
        if len(kept) > 4:
            memory.free(kept.pop(0))
    found = requests_of_snapshot(memory.recording(""), size, 0, "2.11.0")
    assert found is not None
    return found, memory


@given(
    st.lists(AFFINE, min_size=1, max_size=30),
    st.integers(1, 4),
    st.integers(1, 9),
    st.integers(0, 40),
)
@settings(max_examples=80, deadline=None)
def test_what_two_sizes_tell_is_what_a_third_one_asks_for(
    asked: list[tuple[int, int, bool]], small: int, more: int, beyond: int
) -> None:
    first, last = (recorded(asked, size)[0] for size in (small, small + more))
    size = small + more + beyond
    truth, memory = recorded(asked, size)
    found, told = scaled_requests(first, last), scaled_requests(first, truth)
    assert found is not None
    assert told is not None
    assert np.array_equal(found.sizes(size), truth.sizes)
    for limit in (memory.peak_reserved - 1, memory.peak_reserved, 8 * GIB):
        assert found.served(size, limit) == told.served(size, limit)
    assert found.served(size, 8 * GIB).fits
    assert found.served(size, 8 * GIB).allocated_bytes >= memory.peak_allocated


@given(st.lists(AFFINE, min_size=1, max_size=12), st.integers(30, 400))
@settings(max_examples=30, deadline=None)
def test_the_largest_is_the_last_that_fits_up_to_5_percent_beyond_the_first_that_does_not(
    asked: list[tuple[int, int, bool]], limit_mib: int
) -> None:
    first, last = (recorded(asked, size)[0] for size in (1, 2))
    found = scaled_requests(first, last)
    assert found is not None
    limit = limit_mib * MIB
    if (
        not found.served(2, limit).fits
        or sum(each for _, each, is_short in asked if not is_short) < MIB
    ):
        return
    size = found.largest(limit)
    assert found.served(size, limit).fits
    too_large = next(n for n in range(3, 10**6) if not found.served(n, limit).fits)
    assert size >= too_large - 1
    beyond = range(too_large, too_large + max(1, too_large // 20) + 1)
    if too_large < 64:  # so far each size is tried
        assert size == max([too_large - 1, *(n for n in beyond if found.served(n, limit).fits)])


def step(size: int, lines: list[tuple[int, int, bool]]) -> StepRequests:
    """Requests with the line that asked for each, its bytes, and whether it is freed at once;
    then all is freed.
    """
    events: list[dict[str, Any]] = []
    for index, (line, size_bytes, is_scratch) in enumerate(lines):
        frames = [{"filename": "train.py", "line": line, "name": "step"}]
        address = (index + 1) << 30
        events.append(event("alloc", address, size_bytes, frames=frames))
        freed = [
            event(action, address, size_bytes) for action in ("free_requested", "free_completed")
        ]
        events += freed if is_scratch else []
    found = requests_of_snapshot(snapshot(events, []), size, 0, "2.11.0")
    assert found is not None
    return found


def test_requests_are_joined_by_their_line() -> None:
    first = step(2, [(1, 2 * KIB, False), (2, 10 * KIB, False), (1, 6 * KIB, False)])
    last = step(4, [(2, 10 * KIB, False), (1, 4 * KIB, False), (1, 12 * KIB, False)])
    found = scaled_requests(first, last)
    assert found is not None
    assert found.sizes(8).tolist() == [10 * KIB, 8 * KIB, 24 * KIB]


def test_a_workspace_that_only_the_larger_one_had_grows_in_proportion() -> None:
    first = step(2, [(1, 2 * KIB, False)])
    last = step(4, [(1, 4 * KIB, False), (1, 20 * KIB, True)])
    found = scaled_requests(first, last)
    assert found is not None
    assert found.sizes(8).tolist() == [8 * KIB, 40 * KIB]


def test_a_workspace_that_shrinks_is_kept_as_large() -> None:
    found = scaled_requests(step(2, [(1, 9 * KIB, True)]), step(4, [(1, 5 * KIB, True)]))
    assert found is not None
    assert found.sizes(100).tolist() == [5 * KIB]


@pytest.mark.parametrize(
    "other",
    [
        [(1, 4 * KIB, False)],
        [(1, 4 * KIB, False), (2, KIB, False), (3, KIB, False)],
        [(1, 4 * KIB, False), (2, KIB, False), (2, KIB, False)],
    ],
    ids=["fewer", "another line", "once more"],
)
def test_other_requests_tell_nothing(other: list[tuple[int, int, bool]]) -> None:
    first = step(2, [(1, 2 * KIB, False), (2, KIB, False)])
    assert scaled_requests(first, step(4, other)) is None
    assert scaled_requests(first, first) is None


def test_a_recording_that_holds_nothing_tells_nothing() -> None:
    assert requests_of_snapshot({"segments": [], "device_traces": []}, 2, 0, "2.11.0") is None
    assert requests_of_snapshot({"segments": []}, 2, 0, "2.11.0") is None
    assert (
        requests_of_snapshot(snapshot([event("alloc", 1 << 30, 512)], []), 2, 1, "2.11.0") is None
    )


def test_memory_from_before_stays_as_it_is() -> None:
    """Parameters lie there when the recording begins: only what comes after grows."""

    def probe(size: int) -> StepRequests:
        memory = SlowAllocator()
        memory.malloc(30 * MIB)
        memory.events.clear()
        memory.malloc(size * MIB)
        found = requests_of_snapshot(memory.recording(""), size, 0, "2.11.0")
        assert found is not None
        return found

    found = scaled_requests(probe(20), probe(40))
    assert found is not None
    assert sorted(found.sizes(60).tolist()) == [30 * MIB, 60 * MIB]
    assert found.served(60, GIB).reserved_bytes == 90 * MIB
    assert found.largest(100 * MIB) == 70


@pytest.mark.parametrize(("file", "largest"), [("conv.py", 200), ("train.py", 66)])
def test_a_workspace_that_does_not_fit_is_no_failure_and_a_tensor_is(
    file: str, largest: int
) -> None:
    """PyTorch catches that of cuDNN's, and takes a smaller one; no program goes on without ``x
    += layer(x)``.
    """

    def probe(size: int) -> StepRequests:
        memory = SlowAllocator()
        memory.malloc(size * MIB)
        workspace = memory.malloc(2 * size * MIB)
        assert workspace is not None
        memory.events[-1]["frames"] = [{"filename": file, "line": 1, "name": "forward"}]
        memory.free(workspace)
        found = requests_of_snapshot(memory.recording(""), size, 0, "2.11.0")
        assert found is not None
        return found

    found = scaled_requests(probe(20), probe(30))
    assert found is not None
    assert found.largest(200 * MIB) == largest
    assert found.largest(200 * MIB, with_workspaces=True) == 66
    assert found.served(66, 200 * MIB).workspaces_fit
    assert not found.served(68, 200 * MIB).workspaces_fit


PROBES = Path(__file__).parents[2] / "data" / "probes"
"""Of benchmarks/find_batch_size.py on an H100 with PyTorch 2.11, under a limit of 6 GiB."""
LIMIT = 6 * GIB


def probed(name: str, size: int) -> StepRequests:
    with lzma.open(PROBES / f"{name}_{size}.probe.xz") as file:
        found = requests_of_snapshot(pickle.load(file), size, 0, "2.11.0")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "sizes", "measured", "lived", "died"),
    [
        # allocated and reserved bytes as the GPU's allocator counted them, by size
        ("gpt-bf16", (2, 5), {11: (4_589_310_464, 5_637_144_576), 12: (4_850_278_912, 6_043_992_064),
                              14: (5_414_158_848, 6_025_117_696)}, [11, 12, 14], [13, 15]),
        ("encoder", (13, 40), {48: (6_137_224_192, 6_234_832_896)}, [48], [51]),
        ("u-net", (58, 100), {}, [104, 108, 112, 116, 120], [124, 128]),
    ],
)  # fmt: skip
def test_small_probes_tell_what_a_gpu_did_with_larger_ones(
    name: str,
    sizes: tuple[int, int],
    measured: dict[int, tuple[int, int]],
    lived: list[int],
    died: list[int],
) -> None:
    """That a GPT in bfloat16 lives with 12 samples, dies with 13 and lives with 14 is told from
    2 and 5.
    """
    found = scaled_requests(*(probed(name, size) for size in sizes))
    assert found is not None
    for size, (allocated, reserved) in measured.items():
        told = found.served(size, LIMIT)
        assert told.allocated_bytes == allocated
        assert told.reserved_bytes == pytest.approx(reserved, rel=0 if name == "gpt-bf16" else 0.03)
    assert all(found.served(size, LIMIT).fits for size in lived)
    assert not any(found.served(size, LIMIT).fits for size in died)


def test_where_cudnn_had_to_take_smaller_workspaces_is_told() -> None:
    found = scaled_requests(probed("u-net", 58), probed("u-net", 100))
    assert found is not None
    assert found.largest(int(LIMIT * 0.995)) == 121  # the truth by bisection
    assert found.largest(LIMIT, with_workspaces=True) in range(104, 108)  # the GPU fell back at 108


@pytest.mark.parametrize(
    ("name", "sizes", "truth"), [("gpt-bf16", (2, 5, 12), 14), ("encoder", (2, 13, 40), 50)]
)
def test_probes_that_made_other_requests_are_left_out(
    name: str, sizes: tuple[int, int, int], truth: int
) -> None:
    """Other kernels, other requests: from 5 to 12 samples and from 2 to 13; the other pair
    tells.
    """
    small, middle, large = (probed(name, size) for size in sizes)
    pairs = [
        scaled_requests(small, middle),
        scaled_requests(small, large),
        scaled_requests(middle, large),
    ]
    told = [pair.largest(LIMIT) for pair in pairs if pair is not None]
    assert len(told) == 1
    assert 0.95 * truth <= told[0] <= truth


@pytest.mark.parametrize(
    ("file", "function", "is_one"),
    [
        ("/usr/lib/python3/site-packages/torch/nn/modules/conv.py", "_conv_forward", True),
        ("/home/me/convnext/train.py", "step", False),
        ("C:\\conv\\train.py", "step", False),
    ],
)
def test_a_folders_name_makes_no_workspace_dispensable(
    file: str, function: str, is_one: bool
) -> None:
    frames = [
        {"filename": file, "line": 7, "name": function},
        {"filename": "/home/me/conv.py", "line": 9, "name": "main"},
    ]
    events = [event("alloc", 1 << 30, KIB, frames=frames)]
    events += [event(action, 1 << 30, KIB) for action in ("free_requested", "free_completed")]
    found = requests_of_snapshot(snapshot(events, []), 2, 0, "2.11.0")
    assert found is not None
    assert found.dispensable.tolist() == [is_one]
