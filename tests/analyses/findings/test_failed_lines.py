"""Failures whose line, data or library is what to change first: made event by event."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import MadeRun
from vramlens.units import MIB

SITE = "/venv/torch/lib/python3.12/site-packages"
"""A folder of that name is not torch."""
GATHERS = (
    (f"{SITE}/transformers/trainer_pt_utils.py", 87, "torch_pad_and_concatenate"),
    (f"{SITE}/transformers/trainer_pt_utils.py", 129, "nested_concat"),
    (f"{SITE}/transformers/trainer_pt_utils.py", 377, "add"),
    (f"{SITE}/transformers/trainer.py", 2906, "evaluation_loop"),
)
FRAMES = {
    "blocks": (("/home/user/knn.py", 59, "knn"),),
    "data": (("/home/user/knn.py", 20, "load"),),
    "functional": (
        (f"{SITE}/torch/nn/functional.py", 2267, "log_softmax"),
        ("/home/user/knn.py", 61, "knn"),
    ),
    "called": (
        (f"{SITE}/torch/nn/modules/linear.py", 134, "forward"),
        (f"{SITE}/torch/nn/modules/module.py", 1773, "_call_impl"),
        ("/home/user/knn.py", 63, "knn"),
    ),
    "copied": (
        (f"{SITE}/torch/nn/parameter.py", 72, "__deepcopy__"),
        ("/usr/lib/python3.12/copy.py", 137, "deepcopy"),
        ("/usr/lib/python3.12/copy.py", 221, "_deepcopy_dict"),
        ("/usr/lib/python3.12/copy.py", 259, "_reconstruct"),
        ("/home/user/knn.py", 70, "keep"),
    ),
    "gathered": GATHERS,
    "adam": ((f"{SITE}/torch/optim/adam.py", 450, "step"),),
    "sparse_adam": ((f"{SITE}/torch/optim/sparse_adam.py", 60, "step"),),
}


def test_what_the_failed_request_asks_for_is_its_lines(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("data", 300)
    run.asks("functional", 250)
    run.asks("blocks", 400)
    found = {one.id: one for one in run.fails("blocks", 400, tmp_path).findings}
    assert found["largest_line"].title == (
        "one line uses 400.00 MiB, in one tensor, and requests 400.00 MiB"
    )
    assert "knn.py:59 in knn smaller or free some" in (found["largest_line"].fix or "")


def test_another_line_that_holds_less_than_half_is_not_told(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("data", 300)
    run.asks("blocks", 290)
    run.asks("functional", 250)
    found = {one.id for one in run.fails("functional", 64, tmp_path).findings}
    assert "largest_line" not in found


def test_a_function_of_torch_makes_the_users_tensors(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("functional", 400)
    found = {one.id for one in run.fails("functional", 64, tmp_path).findings}
    assert "largest_line" in found


def test_a_deep_copy_is_the_lines_own(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    for _ in range(4):
        run.asks("copied", 100)
    found = {one.id: one for one in run.fails("functional", 64, tmp_path).findings}
    assert "make the tensors of knn.py:70 in keep smaller" in (found["largest_line"].fix or "")


def test_a_call_of_a_model_has_no_tensors_to_make_smaller(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("called", 400)
    found = {one.id for one in run.fails("called", 64, tmp_path).findings}
    assert "largest_line" not in found


def test_outputs_that_a_trainer_gathers_go_to_the_cpu(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("data", 100)
    run.asks("gathered", 250)
    first = next(one for one in run.fails("gathered", 500, tmp_path).findings if one.fix)
    assert first.id == "gathered_outputs"
    assert first.bytes == 750 * MIB
    assert "eval_accumulation_steps=1" in (first.fix or "")


def test_a_little_that_a_trainer_gathers_is_no_advice(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("data", 1000)
    run.asks("gathered", 8)
    found = {one.id for one in run.fails("data", 500, tmp_path).findings}
    assert "gathered_outputs" not in found


@pytest.mark.parametrize(("optimizer", "is_in_8_bit"), [("adam", True), ("sparse_adam", False)])
def test_an_8_bit_optimizer_is_advised_where_there_is_one(
    optimizer: str, is_in_8_bit: bool, tmp_path: Path
) -> None:
    run = MadeRun(FRAMES)
    for _ in range(4):
        run.frees(run.asks("blocks", 100))
        run.asks(optimizer, 100)
    found = {one.id: one for one in run.fails("blocks", 100, tmp_path).findings}
    fix = found["optimizer_state"].fix or ""
    assert ("8-bit" in fix) is is_in_8_bit
    assert "sharding" in fix
