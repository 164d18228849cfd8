"""Ignored labels: batches that hide how they count are checked again, those that tell are
checked once.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from recovery.training import furthest, mean_loss, net, tokens
from vramlens.recovery import guard, inject_oom


def checks(watch: Any) -> int:
    return sum(event.kind == "check" for event in watch.report().events)


def test_a_first_batch_that_ignores_evenly_hides_the_weights_and_is_no_proof() -> None:
    even = tokens(8, seed=1, ignored=False)
    even["labels"][:, :3] = -100  # three of each sample: by samples and by labels it is the same
    ragged = tokens(8, seed=2)
    model, plain = net(), net()
    mean_loss(plain, ragged).backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    taken: dict[str, torch.Tensor] = {}
    optimizer.register_step_pre_hook(
        lambda *_: taken.update({n: p.grad.clone() for n, p in model.named_parameters()})
    )
    watch = guard(model, optimizer)
    with inject_oom("forward"):
        watch.step(even, mean_loss)
    watch.step(ragged, mean_loss)
    assert furthest(taken, {name: p.grad for name, p in plain.named_parameters()}) < 1e-10
    watch.step(tokens(8, seed=3), mean_loss)
    done = checks(watch)  # now labels and labels that are shifted by one are told apart as well
    for seed in range(4, 7):
        watch.step(tokens(8, seed=seed), mean_loss)
    assert checks(watch) == done


def test_ignored_labels_of_another_loss_do_not_have_each_batch_checked() -> None:
    """The mean is over samples although labels lie beside: one check tells."""
    model = net()

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        return functional.mse_loss(
            model(batch["ids"]), torch.zeros(len(batch["ids"]), 7, 23, dtype=torch.float64)
        )

    watch = guard(model, torch.optim.SGD(model.parameters(), lr=0.0))
    with inject_oom("forward"):
        watch.step(tokens(8, seed=1), loss_fn)
    for seed in range(2, 8):
        watch.step(tokens(8, seed=seed), loss_fn)
    assert checks(watch) == 1


def test_labels_that_never_tell_are_not_checked_for_ever() -> None:
    even = tokens(8, seed=1, ignored=False)
    even["labels"][:, :3] = -100
    model = net()
    watch = guard(model, torch.optim.SGD(model.parameters(), lr=0.0))
    with inject_oom("forward"):
        watch.step(even, mean_loss)
    for _ in range(8):
        watch.step(even, mean_loss)
    assert checks(watch) <= 6


def test_a_part_all_of_whose_labels_are_ignored_has_no_say() -> None:
    """By itself its mean is not a number; and its want of a gradient must not look as if losses
    added up.
    """
    batch = tokens(6, seed=1)
    batch["labels"][3:] = -100
    model, plain = net(), net()
    expected = mean_loss(plain, batch)
    expected.backward()
    watch = guard(model)
    with inject_oom("backward"):
        loss = watch.step(batch, mean_loss)
    assert watch.micro_batch == 3
    assert float(loss) == pytest.approx(float(expected.detach()), rel=1e-10)
    assert (
        furthest(
            {n: p.grad for n, p in model.named_parameters()},
            {n: p.grad for n, p in plain.named_parameters()},
        )
        < 1e-10
    )
    first = tokens(6, seed=1)
    first["labels"][:3] = -100
    model.zero_grad()
    plain.zero_grad()
    mean_loss(plain, first).backward()
    watch.step(first, mean_loss)
    assert (
        furthest(
            {n: p.grad for n, p in model.named_parameters()},
            {n: p.grad for n, p in plain.named_parameters()},
        )
        < 1e-10
    )


def test_a_sum_is_not_taken_for_granted_where_a_part_has_no_gradient() -> None:
    """Labels are masked by hand, in all of the last samples: 'it adds up' would be true of these
    only.
    """
    batch = tokens(6, seed=1, ignored=False)
    batch["labels"][2:] = 0
    model = net()

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        labels = batch["labels"].flatten()
        losses = functional.cross_entropy(
            model(batch["ids"]).flatten(0, 1), labels, reduction="none"
        )
        return (losses * (labels != 0)).sum() / (labels != 0).sum().clamp(min=1)

    assert not guard(model).verify({name: leaf[:3] for name, leaf in batch.items()}, loss_fn).equal
