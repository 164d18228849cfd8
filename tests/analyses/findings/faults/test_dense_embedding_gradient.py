"""Gradients as large as an embedding's table, beside tables that a head shares, small ones, and batches
that look much of the table up.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, MadeRun, finding_of

USER = "/home/user/train.py"
CALL = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
FRAMES = {
    "users": ((USER, 11, "__init__"),),
    "items": ((USER, 12, "__init__"),),
    "embedding": ((f"{TORCH}/nn/modules/sparse.py", 190, "forward"), CALL, (USER, 19, "step")),
    "layer": ((f"{TORCH}/nn/modules/linear.py", 134, "forward"), CALL, (USER, 20, "step")),
    "backward": ((f"{TORCH}/_tensor.py", 600, "backward"), (USER, 30, "step")),
    "optimizer": ((f"{TORCH}/optim/adam.py", 600, "_init_group"), (USER, 31, "step")),
}


@pytest.mark.parametrize(("head", "is_told"), [("model.head.weight", True), ("", False)])
def test_a_table_that_the_head_shares_has_a_dense_gradient(
    tmp_path: Path, head: str, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    run.asks("users", 200, name="model.words.weight", kind="parameter")
    if head:
        run.asks("users", 210, name=head, kind="parameter")
    activations = [
        run.asks("embedding", 10, module="model.words"),
        run.asks("layer", 30, module="model.head"),
    ]
    run.asks("backward", 21)
    run.frees(*activations)
    finding = finding_of(run.fails("backward", 200, tmp_path), "dense_embedding_gradient")
    assert (finding is not None) == is_told
    assert finding is None or "SparseAdam" in (finding.fix or "")


def trained(*, looked_up: float, beside: int, head: str = "model.head.weight") -> MadeRun:
    """A step of two tables of 400 and 200 MiB whose gradients are there when the optimizer runs.

    Args:
        looked_up: MiB that a step looks up of the first; of the other a half.
        beside: MiB of something else.
    """
    run = MadeRun(FRAMES)
    run.asks("users", 400, name="model.users.weight", kind="parameter")
    run.asks("items", 200, name="model.items.weight", kind="parameter")
    if head:
        run.asks("layer", 2, name=head, kind="parameter")
    if beside:
        run.asks("layer", beside, name="model.cache")
    activations = [
        run.asks("embedding", looked_up, module="model.users"),
        run.asks("embedding", looked_up / 2, module="model.items"),
        run.asks("layer", 30, module="model.head"),
    ]
    run.asks("backward", 400, name="grad[model.users.weight]", kind="gradient")
    run.asks("backward", 200, name="grad[model.items.weight]", kind="gradient")
    run.frees(*activations)
    run.asks("optimizer", 1)
    return run


@pytest.mark.parametrize(
    ("looked_up", "beside", "head", "is_told"),
    [
        (20, 0, "model.head.weight", True),
        (20.5, 0, "model.head.weight", False),  # a twentieth of the rows
        (20, 1300, "model.head.weight", True),
        (20, 1500, "model.head.weight", False),  # a fifth of what is in use
        (20, 0, "", False),  # the head may share a table
    ],
)
def test_gradients_that_are_there_when_the_optimizer_asks(
    tmp_path: Path, looked_up: float, beside: int, head: str, is_told: bool
) -> None:
    run = trained(looked_up=looked_up, beside=beside, head=head)
    finding = finding_of(run.fails("optimizer", 400, tmp_path), "dense_embedding_gradient")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == 600 << 20
        assert "gradients of model.users.weight and model.items.weight" in finding.title
        assert finding.place is not None
        assert finding.place.line == 11


@pytest.mark.parametrize(("beside", "is_enough"), [(0, False), (200, False), (900, True)])
def test_states_that_are_as_large_as_the_tables(
    tmp_path: Path, beside: int, *, is_enough: bool
) -> None:
    """Tables of 600 MiB, whose sparse optimizer keeps 1,200 MiB: their gradients' 600 MiB are not enough
    where the limit is just above what is in use.
    """
    run = trained(looked_up=20, beside=0)
    if beside:
        run.frees(run.asks("optimizer", beside))
    finding = finding_of(run.fails("optimizer", 400, tmp_path), "dense_embedding_gradient")
    assert finding is not None
    assert ("sparse=True alone" not in (finding.fix or "")) == is_enough


def test_only_tables_of_which_few_rows_are_used_are_named(tmp_path: Path) -> None:
    run = trained(looked_up=20, beside=0)
    run.asks("embedding", 30, module="model.users")
    finding = finding_of(run.fails("optimizer", 100, tmp_path), "dense_embedding_gradient")
    assert finding is None  # 200 MiB of 1,332 are left


@pytest.mark.parametrize(
    ("passes", "dense_before", "node", "is_told"),
    [
        (5, False, "PowBackward0", True),
        (5, False, "", True),
        (1, False, "PowBackward0", True),  # the operation alone says that it is no look-up
        (0, False, "PowBackward0", True),
        (1, False, "", False),
        (5, True, "PowBackward0", False),
        (5, False, "EmbeddingBackward0", False),  # the table was frozen before
    ],
)
def test_a_table_that_only_this_pass_makes_dense_gradients_for(
    tmp_path: Path, passes: int, node: str, *, dense_before: bool, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    run.asks("users", 400, name="model.users.weight", kind="parameter")
    for _ in range(passes):
        looked_up = run.asks("embedding", 10, module="model.users")
        run.frees(run.asks("backward", 400 if dense_before else 5), looked_up)
        run.frees(run.asks("optimizer", 1))
    run.asks("embedding", 10, module="model.users")
    run.asks("backward", 400)
    answer = run.fails("backward", 400, tmp_path, node=node or None)
    finding = finding_of(answer, "dense_embedding_gradient")
    assert finding is not None
    assert ("made none as large" in finding.title) == (is_told and passes > 0)
    assert ("rows that the step looks up" in (finding.fix or "")) == is_told
