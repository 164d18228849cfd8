"""The headline of real failures: what was asked for, what was free, why it failed."""

from __future__ import annotations

import pytest

from support.recordings import DATA
from vramlens import load

OPENING = "Out of memory: tried to allocate "
HEADLINES = {
    "failures/gpt.cap90.vram": (
        "128.00 MiB; 200.00 MiB was free inside PyTorch's cache, in pieces of at most 88.00 MiB;"
        " this step needs 2.04 GiB to finish, and the limit is 1.85 GiB"
    ),
    "failures/amp.cap97.vram": (
        "128.00 MiB; 112.00 MiB was free inside PyTorch's cache, in pieces of at most 104.00 MiB;"
        " without holes, the 1.39 GiB that this step needs would fit into 1.48 GiB"
    ),
    "failures/gpt_varlen.cap50.vram": (
        "301.12 MiB; 195.89 MiB was free inside PyTorch's cache, in pieces of at most 16.00 MiB;"
        " this step (2.23 × an earlier one) needs 4.09 GiB to finish, and the limit is 3.38 GiB"
    ),
    "captured/oom_really_full.vram": (
        "256.00 MiB; 246.19 MiB was free on the GPU, 14.81 MiB free inside PyTorch's cache, in"
        " pieces of at most 9.00 MiB; this step needs at least 78.50 GiB, and there is room for"
        " about 78.35 GiB"
    ),
}


@pytest.mark.parametrize("name", HEADLINES)
def test_it_says_what_was_asked_what_was_free_and_why(name: str) -> None:
    oom = load(DATA / name).explain().oom
    assert oom is not None
    assert oom.headline == OPENING + HEADLINES[name]


def test_a_leak_is_named_with_its_line() -> None:
    oom = load(DATA / "recordings/oom_leak.pickle.xz").explain().oom
    assert oom is not None
    assert oom.headline.startswith(OPENING)
    assert "; a leak kept " in oom.headline
    assert " more each step (" in oom.headline
