"""Programs that make recovery hard: a context that is lost during it, counters that must fire
once, a lonely sample.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections import deque
from typing import Any

import pytest
import torch
from torch import nn

from recovery.training import count, furthest, mean_loss, net, tokens, undisturbed
from vramlens.recovery import guard, inject_oom
from vramlens.recovery.memory_errors import let_go


def test_a_context_that_is_lost_while_a_batch_is_repeated_is_the_end() -> None:
    model, calls = net(), []
    before = [parameter.detach().clone() for parameter in model.parameters()]

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        calls.append(len(batch["ids"]))
        mean_loss(model, batch)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    watch = guard(model, torch.optim.SGD(model.parameters(), lr=0.1), verify=False)
    with pytest.raises(RuntimeError, match="illegal memory access") as lost:
        watch.step(tokens(8), loss_fn)
    assert calls == [8, 4]
    if sys.version_info >= (3, 11):
        assert lost.value.__notes__ == [
            "vramlens: the CUDA context is broken, so nothing can be retried in this process"
        ]
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert str(watch.report()).startswith(
        "1 out-of-memory error in step 1, which then ended with another error"
    )


def test_branches_of_a_backward_that_failed_are_let_go() -> None:
    """PyTorch keeps the branches that it had not come to, whatever becomes of the exception."""
    weights = [torch.ones(4, requires_grad=True) for _ in range(6)]
    branches = [(weight * 2).exp() for weight in weights]
    seen = [weakref.ref(branch) for branch in branches]
    squares = [(branch * branch).sum() for branch in branches]

    def fails(_gradient: torch.Tensor) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    squares[-1].register_hook(fails)
    loss = torch.stack(squares).sum()
    del branches, squares
    with pytest.raises(torch.OutOfMemoryError) as caught:
        loss.backward()
    error = caught.value
    del loss, caught
    gc.collect()
    kept = sum(one() is not None for one in seen)
    let_go(error)
    gc.collect()
    assert not any(one() is not None for one in seen), f"{kept} before"


def test_what_counts_steps_counts_each_batch_once() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    steps, averaged = [], torch.optim.swa_utils.AveragedModel(model)
    optimizer.register_step_post_hook(
        lambda *_: (steps.append(1), averaged.update_parameters(model))
    )
    watch = guard(model, optimizer)
    with inject_oom("backward", every=3) as drill:
        for seed in range(4):
            watch.step(tokens(8, seed=seed), mean_loss)
            schedule.step()
    assert drill.raised > 1
    assert len(steps) == int(averaged.n_averaged) == 4
    assert optimizer.param_groups[0]["lr"] == 1 / 16


def test_norms_in_eval_mode_are_split_and_stay_as_they_are() -> None:
    torch.manual_seed(0)
    model = (
        nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
        .double()
        .eval()
    )
    x = torch.randn(6, 5, dtype=torch.float64)

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        return model(batch).square().mean()

    _, losses, gradients = undisturbed(model, [x], loss_fn, torch.optim.SGD)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    watch = guard(model)
    with inject_oom("forward"):
        assert float(watch.step(x, loss_fn)) == pytest.approx(losses[0], rel=1e-10)
    assert watch.micro_batch == 3
    assert furthest({name: p.grad for name, p in model.named_parameters()}, gradients[0]) < 1e-10
    assert all(torch.equal(buffers[name], buffer) for name, buffer in model.named_buffers())


def test_noise_is_no_excuse_for_a_gradient_that_is_another() -> None:
    """Rounding of 1% must not let a difference of 20% pass, however many times the noise that
    is allowed.
    """
    torch.manual_seed(0)
    model = nn.Linear(4, 1).double()
    x = torch.randn(6, 4, dtype=torch.float64)

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        loss = model(batch).square().mean()
        loss = loss * (
            1 + 0.02 * float(batch[0, 0] > batch[-1, 0])
        )  # as rounding that depends on the order
        return loss * (1.0 if len(batch) == 6 else 1.2)

    found = guard(model).verify(x, loss_fn)
    assert not found.equal
    assert found.noise is not None
    assert 0.01 < found.noise < 0.05
    assert found.error is not None
    assert found.error > 0.1


def test_one_sample_that_fails_again_and_again_has_its_blocks_recomputed_and_then_stops() -> None:
    model = net()
    watch = guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with inject_oom("forward", at=(1, 2)):
        watch.step(tokens(1), mean_loss)
    assert watch.state_dict()["checkpointed"] == ["blocks.0", "blocks.1"]
    with inject_oom("forward", every=1), pytest.raises(torch.OutOfMemoryError) as stopped:
        watch.step(tokens(1), mean_loss)
    assert "even a single sample does not fit" in str(stopped.value)
    assert (
        str(stopped.value)
        .splitlines()[-1]
        .startswith("next: use a smaller sample (a shorter sequence")
    )


def test_a_loss_that_is_a_sum_is_split_as_a_sum() -> None:
    model, plain, batch = net(), net(), tokens(7)

    def summed(model: Any, batch: Any) -> torch.Tensor:
        labels = batch["labels"].flatten()
        return nn.functional.cross_entropy(
            model(batch["ids"]).flatten(0, 1), labels, reduction="sum"
        )

    expected = summed(plain, batch)
    expected.backward()
    watch = guard(model)
    with inject_oom("backward"):
        assert float(watch.step(batch, summed)) == pytest.approx(
            float(expected.detach()), rel=1e-10
        )
    assert (
        furthest(
            {n: p.grad for n, p in model.named_parameters()},
            {n: p.grad for n, p in plain.named_parameters()},
        )
        < 1e-10
    )
    assert "the losses of the parts add up" in str(watch.report())


def test_a_check_that_has_no_room_takes_nothing_back() -> None:
    """At the tenth split the check is repeated: where two samples do not fit any more, the first
    one still holds.
    """
    model, room = net(), deque([64])  # no setting of the loss, which would have it checked anew

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        if len(batch["ids"]) > room[0]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return mean_loss(model, batch)

    watch = guard(
        model, torch.optim.SGD(model.parameters(), lr=0.0), count_fn=count, order=("split",)
    )
    with inject_oom("forward"):
        watch.step(tokens(8, seed=1), loss_fn)
    room[0] = 1
    for seed in range(2, 14):
        watch.step(tokens(8, seed=seed), loss_fn)
    assert watch.micro_batch == 1
    assert watch.report().steps == 13
    assert "does not split" not in str(watch.report())
