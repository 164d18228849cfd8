"""guard_trainer: a Trainer's own training steps, in parts, with the gradients and losses that it
would have had.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from recovery.training import furthest, net, tokens
from vramlens.errors import UsageError
from vramlens.recovery import guard_trainer, inject_oom


class Accelerator:
    """As accelerate's: the backward is its affair, here with a scale."""

    sync_gradients = True

    def __init__(self) -> None:
        self.backwards = 0

    def backward(self, loss: torch.Tensor, **_options: Any) -> None:
        self.backwards += 1
        (loss * 8).backward()


class Trainer:
    """As transformers': a step computes the loss, divides it where it was not divided yet, and
    goes backward.
    """

    def __init__(
        self, model: nn.Module, by_items: bool = True, accumulated: int = 1, smoothed: bool = False
    ) -> None:
        self.model, self.by_items, self.accumulated, self.smoothed = (
            model,
            by_items,
            accumulated,
            smoothed,
        )
        self.accelerator, self.args = Accelerator(), SimpleNamespace(world_size=1, n_gpu=0)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.taken: list[dict[str, torch.Tensor]] = []

    def training_step(
        self, model: Any, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        model.train()
        labels = (
            inputs.pop("labels") if self.smoothed else inputs["labels"]
        )  # as label smoothing does
        logits = model(inputs["ids"]).flatten(0, 1)
        kind = "sum" if self.by_items else "mean"
        loss = functional.cross_entropy(logits, labels.flatten(), reduction=kind)
        loss = loss / (num_items_in_batch if self.by_items else self.accumulated)
        self.accelerator.backward(loss)
        return loss.detach()

    def train(self, batches: list[Any]) -> list[float]:
        losses = []
        for start in range(0, len(batches), self.accumulated):
            group = batches[start : start + self.accumulated]
            items = sum(int((batch["labels"] != -100).sum()) for batch in group)
            for index, batch in enumerate(group):
                self.accelerator.sync_gradients = index == len(group) - 1
                losses.append(float(self.training_step(self.model, batch, items)))
            self.taken.append(
                {n: p.grad.clone() for n, p in self.model.named_parameters() if p.grad is not None}
            )
            self.optimizer.step()
            self.optimizer.zero_grad()
        return losses


def batches() -> list[Any]:
    return [tokens(6, seed=seed) for seed in range(4)]


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("by_items", [True, False])
def test_gradients_and_losses_are_those_of_the_trainer(
    phase: str, accumulated: int, by_items: bool
) -> None:
    plain = Trainer(net(), by_items, accumulated)
    losses = plain.train(batches())
    trainer = Trainer(net(), by_items, accumulated)
    watch = guard_trainer(trainer)
    with inject_oom(phase, at=2) as drill:
        ours = trainer.train(batches())
    assert drill.raised == 1
    assert watch.guard is not None
    assert watch.guard.micro_batch == 3
    assert ours == pytest.approx(losses, rel=1e-10)
    assert max(furthest(a, b) for a, b in zip(trainer.taken, plain.taken, strict=True)) < 1e-10
    assert trainer.accelerator.backwards > plain.accelerator.backwards
    assert "the losses of the parts add up" in str(watch.report()) or not by_items


def test_nothing_changes_where_nothing_fails() -> None:
    plain, trainer = Trainer(net()), Trainer(net())
    watch = guard_trainer(trainer)
    assert trainer.train(batches()) == plain.train(batches())
    assert all(
        torch.equal(a, b)
        for a, b in zip(trainer.model.parameters(), plain.model.parameters(), strict=True)
    )
    assert trainer.accelerator.backwards == plain.accelerator.backwards
    assert str(watch.report()).startswith("Memory did not run out in 4 steps")
    assert "backward" not in vars(trainer.accelerator)
    watch.detach()
    assert "training_step" not in vars(trainer)


def test_a_step_that_takes_labels_out_of_its_inputs_can_be_repeated() -> None:
    plain, trainer = Trainer(net(), smoothed=True), Trainer(net(), smoothed=True)
    losses = plain.train([copy.copy(batch) for batch in batches()])
    guard_trainer(trainer)
    with inject_oom("forward", at=2):
        assert trainer.train(batches()) == pytest.approx(losses, rel=1e-10)


def test_what_cannot_be_guarded_is_refused() -> None:
    with pytest.raises(UsageError, match="has no accelerator"):
        guard_trainer(nn.Linear(1, 1))
    trainer = Trainer(net())
    with pytest.raises(UsageError, match="optimizer: the Trainer controls this"):
        guard_trainer(trainer, optimizer=trainer.optimizer)
    trainer.args.world_size = 4
    with pytest.raises(UsageError, match="runs on 4 devices"):
        guard_trainer(trainer)
    trainer = Trainer(net())
    watch = guard_trainer(trainer)
    with pytest.raises(UsageError, match="no training step has started"):
        watch.report()
    with pytest.raises(UsageError, match="was already replaced"):
        guard_trainer(trainer)

    class Own(Trainer):
        def training_step(
            self, model: Any, inputs: Any, num_items_in_batch: Any = None
        ) -> torch.Tensor:
            loss = model(inputs["ids"]).square().mean()
            loss.backward()
            return loss.detach()

    own = Own(net())
    guard_trainer(own)
    with pytest.raises(UsageError, match=r"called accelerator.backward 0 times, not once"):
        own.train(batches())


def test_the_report_speaks_of_the_trainer() -> None:
    trainer = Trainer(net())
    watch = guard_trainer(trainer)
    assert repr(watch) == "guard_trainer: no training step has started"
    with inject_oom("backward", at=2):
        trainer.train(batches())
    lines = str(watch.report()).splitlines()
    assert repr(watch) == lines[0]
    assert lines[1].startswith("  the Trainer's training_step was called 8 times for 4 batches")
    assert lines[-1] == "next: reuse what was learned: guard_trainer(trainer, micro_batch=3)"
    assert not any("no optimizer" in line or "loss_fn" in line for line in lines)
