"""What bounds a step of which nothing is recorded: the modules so far, and what follows them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.made_failures import MadeRun
from support.recordings import DATA
from vramlens import load
from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.optimizer_state import most_states
from vramlens.analyses.failure.first_step.after_blocks import bytes_after_blocks
from vramlens.analyses.failure.first_step.first_step_need import (
    _gradients_beside,
    need_of_first_step,
)
from vramlens.analyses.failure.first_step.forward_progress import (
    Progress,
    _alike_bytes,
    _block_path,
    _computed_again,
)
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


LAYERS = [f"model.layers.{number}" for number in range(6)]


@pytest.mark.parametrize(
    ("blocks", "done", "alike"),
    [
        (LAYERS, [200, 210, 205], 210),
        (LAYERS, [200, 100, 50], None),  # stages of a network for images
        (LAYERS, [200], None),
        ([*LAYERS, "model.decoder.0"], [200, 210, 205], None),
        (["model.when.0", *LAYERS], [3, 200, 210], 210),
    ],
)
def test_blocks_are_alike_where_all_of_one_kind_keep_as_much(
    blocks: list[str], done: list[int], alike: int | None
) -> None:
    assert _alike_bytes(blocks, len(done), done) == alike


def test_gradients_beside_alike_blocks_are_those_of_two() -> None:
    progress = Progress(12, 6, "layers.6", 0, 1200, alike_bytes=100)
    assert _gradients_beside(2400, progress) == 200
    assert _gradients_beside(400, progress) == 100
    assert _gradients_beside(2400, None) == 600


def test_a_block_that_kept_little_is_computed_again() -> None:
    """QLoRA with checkpointing: each block asked for 1.5 GiB and kept 16 MiB."""
    asked = {0: 1576 * MIB, 1: 1544 * MIB}
    assert _computed_again([16 * MIB, 16 * MIB], asked) == 1576 * MIB
    assert _computed_again([16 * MIB, 900 * MIB], asked) == 0
    assert _computed_again([], asked) == 0


@pytest.mark.parametrize(
    ("path", "block"),
    [
        ("encoder.layers.encoder_layer_3.mlp.0.weight", "encoder.layers.encoder_layer_3"),
        ("model.layers.11.norm.weight", "model.layers.11"),
        ("model.layer1.0.conv1.weight", "model.layer1.0"),
        ("model.norm1.weight", ""),
    ],
)
def test_a_block_is_the_first_part_that_is_numbered(path: str, block: str) -> None:
    assert _block_path(path) == block


@pytest.mark.parametrize(
    ("mib_by_block", "least_to_come"),
    [
        ([40, 40], 2 * 4 * 40 * 0.9),  # two whole blocks more, nearly as large
        ([40, 20], 0),  # a pyramid: each block is smaller than the one before
        ([40, 40, 40], 4 * 40 * 0.9),
        ([20, 40], 2 * 4 * 20 * 0.9),
    ],
)
def test_what_blocks_to_come_keep_at_least(
    tmp_path: Path, mib_by_block: list[int], least_to_come: float
) -> None:
    """Four blocks of four layers each, of which the last that began had come to its third layer."""
    frames = {f"layer {n}": (("/home/user/glow.py", 20 + n, "forward"),) for n in range(4)}
    run = MadeRun({"weights": (("/home/user/glow.py", 5, "load"),), **frames})
    for block in range(4):
        run.asks("weights", 2, name=f"model.blocks.{block}.conv.weight", kind="parameter")
    for block, mib in enumerate(mib_by_block):
        for layer in range(4 if block + 1 < len(mib_by_block) else 2):
            run.asks(f"layer {layer}", mib, module=f"model.blocks.{block}.conv")
    alive_mib = sum(run.alive.values()) // MIB
    run.fails("layer 2", mib_by_block[-1], tmp_path)
    view = load(tmp_path / "made.vram").attribution()
    need = need_of_first_step(view, view.device.out_of_memory[-1])
    assert need is not None
    to_come = need.low_bytes / MIB - alive_mib - mib_by_block[-1]
    assert to_come == pytest.approx(least_to_come, abs=1)
