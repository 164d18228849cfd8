"""Single operators whose kernels work in more memory than their results, against an H100 with
PyTorch 2.11: the cases of ``operators.py`` in benchmarks/prediction, and its figures.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.programs import python

pytest.importorskip("torch")

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "prediction"
PROGRAM = """
import json, sys
import operators

measured = operators.figures_in("operators_measured.json.xz")["cases"]
predict = operators.predicted()
answer, orders = {}, {}
for case in operators.all_cases():
    if case.key in sys.argv[1:]:
        ours = predict(case)
        answer[case.key] = {
            phase: operators.difference(truth, ours[phase])[1] if phase in ours else str(ours)
            for phase, truth in measured[case.key].items()
            if phase in operators.PHASES
        }
        orders[case.key] = {
            phase: [truth["requests"], ours[phase]["requests"]]
            for phase, truth in measured[case.key].items()
            if phase in ("inference", "forward") and phase in ours
        }
print(json.dumps([answer, orders]))
"""
CASES = (
    # lookups and sums by index: sorted first
    "embedding float32", "embedding/by_frequency bfloat16", "embedding_bag/sum float32",
    "index/pairs float32", "index/mask_rows_computed float32", "take float32",
    # sorts: one row, few rows, many rows, columns; the middle; distinct numbers
    "sort/long float32", "sort/long_rows bfloat16", "msort float32", "median/all float32",
    "unique/counts float32", "randperm float32",
    # reductions: partial results of each kernel's size
    "amax/columns bfloat16", "all/columns float32", "aminmax/columns float32", "norm/p1_columns float32",
    "logsumexp/columns float32", "renorm/rows float32", "count_nonzero float32",
    # losses that keep their parts, and one that autograd takes in place
    "mse_loss float32", "smooth_l1_loss bfloat16", "binary_cross_entropy float32", "huber_loss float32",
    "bce_with_logits/weighted float32", "multi_margin_loss bfloat16", "soft_margin_loss float32",
    # attention
    "attention/wide bfloat16", "attention/mask_trained bfloat16", "attention/grouped bfloat16",
    "attention/odd_width bfloat16", "multihead/no_weights float32",
    # cells, copies and columns
    "lstm_cell float32", "gru_cell bfloat16", "dropout float32", "embedding_bag/offsets float32",
    "roll/two float32", "fold float32", "unfold float32",
    "scatter_reduce/mean float32", "index_reduce float32", "cdist/p1 float32", "pdist float32",
    "repeat_interleave/known_size float32", "multinomial float32", "bernoulli bfloat16",
    # products of many factors, transforms, systems
    "db.cumprod/1 float32", "prod/all float32", "complex float32", "fft/odd float32",
    "solve/many float32", "inv/middle float32", "qr/large float32", "svd/large float32", "pinv/large float32",
    "optim.SGD/momentum_fused float32",
)  # fmt: skip
ORDERED = (
    "dropout float32", "embedding_bag/offsets float32", "gru_cell bfloat16", "lstm_cell float32", "sort/long float32",
)  # fmt: skip
"""Whose requests come in the card's order, which decides what serves them."""
UNKNOWN = {"index/mask_rows_computed float32"}
"""How much a mask selects is not known: all of it is taken, and the range begins at none."""


@pytest.fixture(scope="module")
def answers() -> Any:
    done = python(BENCHMARK, "-c", PROGRAM, *CASES)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def differences(answers: Any) -> Any:
    return answers[0]


@pytest.mark.parametrize("case", ORDERED)
def test_a_kernel_asks_in_the_order_of_a_card(answers: Any, case: str) -> None:
    assert answers[1][case]
    for measured, predicted in answers[1][case].values():
        assert predicted == measured


@pytest.mark.parametrize("case", [case for case in CASES if case not in UNKNOWN])
def test_a_kernel_holds_what_it_held_on_a_card(differences: Any, case: str) -> None:
    """At the peak and afterwards, without gradients, forward and backward: within 3% or 1 MiB."""
    assert differences[case]
    assert not any(differences[case].values()), differences[case]


@pytest.mark.parametrize("case", sorted(UNKNOWN))
def test_what_a_mask_selects_has_a_range(differences: Any, case: str) -> None:
    """Half of the rows were selected: 4 MiB of 8."""
    assert "range 0.0 to 8.1" in differences[case]["forward"]
