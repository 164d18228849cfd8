"""The headline of real failures: what was asked for, what was free, why it failed."""

from __future__ import annotations

import pytest

from support.recordings import DATA
from vramlens import load

OPENING = "Out of memory: tried to allocate "
HEADLINES = {
    "failures/gpt.cap90.vram": (
        "128.00 MiB. PyTorch's cache had 200.00 MiB free, in blocks of at most 88.00 MiB."
        " This step needs 2.04 GiB to finish with these settings; the limit is 1.85 GiB."
    ),
    "failures/amp.cap97.vram": (
        "128.00 MiB. PyTorch's cache had 112.00 MiB free, in blocks of at most 104.00 MiB."
        " This step uses 1.39 GiB at its peak; without gaps, that would fit in 1.48 GiB."
    ),
    "failures/gpt_varlen.cap50.vram": (
        "301.12 MiB. PyTorch's cache had 195.89 MiB free, in blocks of at most 16.00 MiB."
        " This step needs 4.09 GiB to finish (1.33x an earlier step); the limit is 3.38 GiB."
    ),
    "captured/oom_really_full.vram": (
        "256.00 MiB. The GPU had 246.19 MiB free, and PyTorch's cache had 14.81 MiB free, in"
        " blocks of at most 9.00 MiB. This step needs between 78.50 GiB and 403.92 GiB to finish;"
        " PyTorch could reserve about 78.35 GiB."
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
    assert ". Earlier steps leaked 1.73 GiB" in oom.headline
    assert " per step (" in oom.headline
