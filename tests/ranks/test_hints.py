"""What the functions of a stack say."""

from __future__ import annotations

import re

import numpy as np
import pytest

from vramlens.ranks import hints
from vramlens.ranks.hints import Hint, hints_of
from vramlens.trace.stacks import Stacks
from vramlens.trace.strings import Strings

ENGINE = "site-packages/deepspeed/runtime/engine.py"


@pytest.mark.parametrize(
    ("frame", "is_state_dict"),
    [
        (f"{ENGINE}:_zero3_consolidated_16bit_state_dict", True),
        (f"{ENGINE}:save_16bit_model", True),
        ("site-packages/torch/distributed/checkpoint/state_dict.py:get_model_state_dict", True),
        (f"{ENGINE}:step", False),
        ("train.py:load_state_dict", False),
    ],
)
def test_calls_that_gather_the_state_of_a_model(frame: str, is_state_dict: bool) -> None:
    pattern = hints._PATTERNS[Hint.STATE_DICT]
    assert bool(re.search(pattern, frame)) == is_state_dict


def stack_of(*frames: str) -> Stacks:
    """One stack, innermost frame first, each as ``file:function``."""
    texts = [text for frame in frames for text in frame.split(":")]
    nothing = Strings(np.zeros(0, np.uint8), np.zeros(1, np.uint64))
    return Stacks(
        strings=nothing.with_texts(texts),
        frame_file=np.arange(0, len(texts), 2, np.uint32),
        frame_function=np.arange(1, len(texts), 2, np.uint32),
        frame_line=np.ones(len(frames), np.int64),
        frames=np.arange(len(frames), dtype=np.uint32),
        starts=np.array([0, len(frames)]),
    )


def test_states_that_are_sent_as_the_bytes_of_a_file_are_no_checkpoint() -> None:
    """``ZeroRedundancyOptimizer.consolidate_state_dict`` loads what it received."""
    torch = "/x/site-packages/torch"
    load, sent = (
        f"{torch}/serialization.py:load",
        f"{torch}/distributed/optim/zero_redundancy_optimizer.py:_recv",
    )
    assert hints_of(stack_of(load, "/home/me/train.py:save")) == [Hint.LOAD]
    assert hints_of(stack_of(load, sent, "/home/me/train.py:save")) == [Hint.NONE]
