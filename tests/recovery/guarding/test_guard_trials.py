"""The guard's word: each step equals the plain program's, or is refused in words, whatever
changes or fails.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from recovery.guarding.test_guard_refusals import contrastive, mlp, pairs, sgd, squared
from vramlens.recovery import guard, inject_oom

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "guard_trials.py"
ONCE_WRONG = (
    5,
    105,
    559,
    1235,
    1848,
    2124,
    2216,
    2653,
    2880,
    3031,
    3235,
    21088,
    25864,
    27284,
    709344,
)
"""Seeds that ended in other parameters at some time, each for another reason."""


@pytest.fixture(scope="module")
def trials() -> Any:
    spec = spec_from_file_location("guard_trials", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["guard_trials"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", [*range(10), *ONCE_WRONG])
def test_a_random_training_is_equal_or_refused(trials: Any, seed: int) -> None:
    result = trials.trial(trials.Plan(seed, "cpu", torch.float64 if seed % 4 else torch.float32))
    assert result["outcome"] in ("equal", "refused"), result


def test_a_loss_is_split_only_in_the_form_that_was_checked() -> None:
    """A, A, B: the third step has another loss, which couples its samples."""
    model, plain = mlp(), mlp()
    watch = guard(model, sgd(model), micro_batch=4)
    optimizer = sgd(plain)
    for loss_fn in (squared, squared, contrastive):
        loss_fn(plain, pairs()).backward()
        optimizer.step()
        optimizer.zero_grad()
        watch.step(pairs(), loss_fn)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-10)
    assert "does not split: the loss of one sample depends on the others" in str(watch.report())


def test_running_statistics_go_back_after_each_failure_and_not_only_the_first() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    watch = guard(model, sgd(model), order=("free_cached",))
    for _ in range(3):
        watch.step(pairs(), squared)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with inject_oom("backward"), pytest.raises(torch.OutOfMemoryError):
        watch.step(pairs(), squared)
    assert all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())


def test_a_failure_while_clipping_with_a_scaler_runs_the_batch_again() -> None:
    model, failures = mlp().float(), [1]
    batch = {name: leaf.float() for name, leaf in pairs().items()}

    def clip() -> None:
        if failures:
            failures.pop()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")

    watch = guard(model, sgd(model), torch.amp.GradScaler("cpu"), clip=clip)
    watch.step(batch, squared)
    assert watch.report().headline.startswith("Survived 1 out-of-memory error in 1 step")


def test_a_number_that_the_loss_counts_is_put_back_and_not_counted_twice() -> None:
    model, state = mlp(), {"calls": 0}

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        state["calls"] += 1
        return squared(model, batch) * state["calls"]

    watch = guard(model, sgd(model), order=("split",))
    watch.step(pairs(), loss_fn)
    with (
        inject_oom("forward"),
        pytest.raises(torch.OutOfMemoryError, match="loss_fn changes state"),
    ):
        watch.step(pairs(), loss_fn)
    assert state["calls"] == 1


def test_an_option_that_does_not_exist_is_named() -> None:
    with pytest.raises(Exception, match="there is no option 'treshold'"):
        guard(mlp(), treshold=0.5)
