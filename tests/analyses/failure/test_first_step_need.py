"""What bounds a step of which nothing is recorded: the modules so far, and what follows them."""

from __future__ import annotations

import numpy as np
import pytest

from support.recordings import DATA
from vramlens import load
from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.optimizer_state import most_states
from vramlens.analyses.failure.after_blocks import bytes_after_blocks
from vramlens.units import MIB

KEPT, OUTSIDE = 1400 * MIB, 20 * MIB


@pytest.fixture(scope="module")
def view() -> Attribution:
    return load(DATA / "failures/accumulate.cap80.vram").attribution()


def after(view: Attribution, last_block: str, sizes: list[int]) -> int:
    return bytes_after_blocks(
        view,
        ["model.blocks.0", last_block],
        np.array(sizes, np.int64),
        outside_bytes=OUTSIDE,
        kept_bytes=KEPT,
    )


def test_a_head_is_as_wide_as_its_matrix(view: Attribution) -> None:
    """16,000 words of 640 numbers, on 3,072 vectors: 187.5 MiB of logits, as was asked for."""
    request = view.device.out_of_memory[-1].size_bytes
    most = after(view, _last_block(view), [7864320] * 8 + [4 * 7864320])
    assert OUTSIDE + request < most <= OUTSIDE + 4 * (request + 7864320) + MIB
    assert most < KEPT


def test_without_a_whole_block_it_may_be_as_much_as_the_blocks(view: Attribution) -> None:
    assert after(view, _last_block(view), []) == KEPT


def test_an_optimizer_that_is_not_known_keeps_what_adam_keeps(view: Attribution) -> None:
    assert most_states(view) == 2


def _last_block(view: Attribution) -> str:
    assert view.trace.names is not None
    paths = [name for name in view.trace.names.name if ".7." in name]
    return paths[0].partition(".7.")[0] + ".7"
