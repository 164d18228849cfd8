"""What the functions of a stack say."""

from __future__ import annotations

import re

import pytest

from vramlens.ranks import hints
from vramlens.ranks.hints import Hint

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
