"""guard.step: the same gradients as an undisturbed step, committed once, whatever fails."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from recovery.training import (
    GradientsOf,
    Net,
    count,
    furthest,
    mean_loss,
    net,
    sum_loss,
    tokens,
    undisturbed,
)
from vramlens.recovery import guard, inject_oom

BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-5}


def guarded(
    model: nn.Module,
    batches: list[Any],
    loss_fn: Any = mean_loss,
    kind: Any = torch.optim.AdamW,
    **options: Any,
) -> tuple[Any, list[float], GradientsOf]:
    optimizer = kind(model.parameters(), lr=1e-2)
    seen = GradientsOf(model, optimizer)
    watch = guard(model, optimizer, **options)
    return watch, [float(watch.step(batch, loss_fn)) for batch in batches], seen


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("loss", ["sum and count", "count_fn", "found by itself"])
@pytest.mark.parametrize("size", [10, 7])
def test_a_recovered_step_has_the_gradients_of_an_undisturbed_one(
    dtype: torch.dtype, phase: str, loss: str, size: int
) -> None:
    batches = [tokens(size, seed=seed) for seed in range(4)]
    loss_fn = sum_loss if loss == "sum and count" else mean_loss
    options = {"count_fn": count} if loss == "count_fn" else {}
    _, losses, gradients = undisturbed(net(dtype), batches, loss_fn)
    with inject_oom(phase, at=2) as drill:
        watch, ours, seen = guarded(net(dtype), batches, loss_fn, **options)
    assert drill.raised == 1
    assert watch.micro_batch == (size + 1) // 2
    assert len(seen.steps) == 4
    bound = BOUNDS[dtype]
    assert max(furthest(a, b) for a, b in zip(seen.steps, gradients, strict=True)) < bound
    assert ours == pytest.approx(losses, rel=bound)


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("failing", range(1, 9))
def test_a_failure_at_every_micro_batch(phase: str, failing: int) -> None:
    batches = [tokens(9, seed=seed) for seed in range(3)]
    _, losses, gradients = undisturbed(net(), batches)
    with inject_oom(phase, at=failing) as drill:
        watch, ours, seen = guarded(net(), batches, count_fn=count, micro_batch=3, verify=False)
    assert drill.raised == 1
    assert max(furthest(a, b) for a, b in zip(seen.steps, gradients, strict=True)) < 1e-10
    assert ours == pytest.approx(losses, rel=1e-10)
    assert watch.micro_batch == 2


def test_failures_until_one_sample_is_left() -> None:
    batches = [tokens(8)]
    _, _, gradients = undisturbed(net(), batches)
    watch, model = None, net()
    optimizer = torch.optim.AdamW(model.parameters())
    seen = GradientsOf(model, optimizer)
    watch = guard(model, optimizer, verify=False, count_fn=count)
    with inject_oom("backward", at=(1, 2, 3)):
        watch.step(batches[0], mean_loss)
    assert watch.micro_batch == 1
    assert furthest(seen.steps[0], gradients[0]) < 1e-10
    assert watch.report().recovered == 1
    assert watch.report().failures == 3


def test_nothing_is_changed_when_nothing_fails() -> None:
    batches = [tokens(6, seed=seed) for seed in range(5)]
    before, losses, _ = undisturbed(net(torch.float32), batches)
    model = net(torch.float32)
    watch, ours, _ = guarded(model, batches)
    assert ours == losses
    assert all(
        torch.equal(a, b) for a, b in zip(before.parameters(), model.parameters(), strict=True)
    )
    assert str(watch.report()).startswith(
        "Memory did not run out in 5 steps; the guard changed nothing."
    )


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("SGD", {}),
        ("SGD", {"momentum": 0.9, "dampening": 0.3}),
        ("SGD", {"momentum": 0.9, "nesterov": True}),
        ("Adam", {"amsgrad": True}),
        ("AdamW", {"foreach": False}),
        ("AdamW", {"fused": True}),
        ("AdamW", {"capturable": False, "maximize": True}),
        ("NAdam", {}),
        ("RAdam", {}),
        ("Adagrad", {"initial_accumulator_value": 0.1}),
        ("Adadelta", {}),
        ("Adamax", {}),
        ("ASGD", {}),
        ("RMSprop", {"momentum": 0.5, "centered": True}),
        ("Rprop", {}),
    ],
)
def test_state_made_before_the_first_step_changes_no_result(
    kind: str, options: dict[str, Any]
) -> None:
    batches = [tokens(4, seed=seed) for seed in range(3)]
    optimizer = getattr(torch.optim, kind)
    model = net(torch.float32)
    model.unused = nn.Linear(2, 2)  # no loss reaches it
    plain, losses, _ = undisturbed(model, batches, kind=optimizer, **options)
    made = optimizer(model.parameters(), **{"lr": 1e-2} | options)
    watch = guard(model, made)
    assert [float(watch.step(batch, mean_loss)) for batch in batches] == losses
    assert all(
        torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True)
    )
    assert kind == "Adagrad" or not any(
        made.state.get(parameter) for parameter in model.unused.parameters()
    )


@pytest.mark.parametrize("loss_fn", [mean_loss, sum_loss])
@pytest.mark.parametrize("failing", [2, 3, 4])
def test_accumulation_over_several_batches_is_rolled_back_to_its_beginning(
    loss_fn: Any, failing: int
) -> None:
    batches = [tokens(6, seed=seed) for seed in range(4)]
    plain = net()
    for batch in batches:
        loss = loss_fn(plain, batch)
        ((loss[0] / loss[1] if isinstance(loss, tuple) else loss) / 4).backward()
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    seen = GradientsOf(model, optimizer)
    watch = guard(model, optimizer)
    with inject_oom("backward", at=failing) as drill:
        for index, batch in enumerate(batches):
            watch.step(batch, loss_fn, commit=index == 3, scale=0.25)
    assert drill.raised == 1
    assert len(seen.steps) == 1
    assert furthest(seen.steps[0], {name: p.grad for name, p in plain.named_parameters()}) < 1e-10


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_gradients_of_the_users_own_stay(phase: str) -> None:
    first, second = tokens(6, seed=1), tokens(6, seed=2)
    plain, model = net(), net()
    for batch in (first, second):
        mean_loss(plain, batch).backward()
    mean_loss(model, first).backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = GradientsOf(model, optimizer)
    watch = guard(model, optimizer)
    with inject_oom(phase):
        watch.step(second, mean_loss)
    assert furthest(seen.steps[0], {name: p.grad for name, p in plain.named_parameters()}) < 1e-10


def test_without_an_optimizer_the_caller_steps() -> None:
    batch, model, plain = tokens(6), net(), net()
    mean_loss(plain, batch).backward()
    with inject_oom("backward"):
        guard(model).step(batch, mean_loss)
    assert (
        furthest(
            {n: p.grad for n, p in model.named_parameters()},
            {n: p.grad for n, p in plain.named_parameters()},
        )
        < 1e-10
    )


def test_clipping_is_of_the_whole_gradient() -> None:
    batches = [tokens(6, seed=seed) for seed in range(3)]
    plain = net()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for batch in batches:
        mean_loss(plain, batch).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.3)
        optimizer.step()
        optimizer.zero_grad()
    for clip in (0.3, "function"):
        model = net()
        by = (
            (lambda m=model: nn.utils.clip_grad_norm_(m.parameters(), 0.3))
            if clip == "function"
            else clip
        )
        watch = guard(model, torch.optim.SGD(model.parameters(), lr=0.1), clip=by)
        with inject_oom("backward", at=2):
            for batch in batches:
                watch.step(batch, mean_loss)
        for a, b in zip(plain.parameters(), model.parameters(), strict=True):
            assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)


def test_autocast_and_a_scaler() -> None:
    batches = [tokens(8, seed=seed) for seed in range(4)]

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(batch["ids"])
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), batch["labels"].flatten())

    def train(fail: bool) -> tuple[list[float], Net, Any]:
        model = net(torch.float32)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        watch = guard(model, optimizer, scaler, clip=1.0, count_fn=count)
        with inject_oom("backward", at=2 if fail else 10**6):
            return [float(watch.step(batch, loss_fn)) for batch in batches], model, scaler

    undisturbed_losses, _, first = train(False)
    losses, _, second = train(True)
    assert losses == pytest.approx(undisturbed_losses, rel=2e-2)  # bfloat16
    assert first.get_scale() == second.get_scale()


@pytest.mark.filterwarnings("ignore:Using `torch.compile.module.` when there are global hooks")
def test_a_compiled_model() -> None:
    batches = [tokens(6, seed=seed) for seed in range(2)]
    _, losses, gradients = undisturbed(net(), batches)
    model = net()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    seen = GradientsOf(model, optimizer)
    watch = guard(compiled, optimizer)
    with inject_oom("backward") as drill:
        ours = [float(watch.step(batch, mean_loss)) for batch in batches]
    assert drill.raised == 1
    assert watch.micro_batch == 3
    assert ours == pytest.approx(losses, rel=1e-10)
    assert max(furthest(a, b) for a, b in zip(seen.steps, gradients, strict=True)) < 1e-10


def test_random_numbers_go_on_as_if_nothing_had_failed() -> None:
    """Dropout: the same masks where the batch is repeated whole, and the same numbers
    afterwards.
    """
    batches = [tokens(6, seed=seed) for seed in range(3)]

    def train(fail: bool) -> list[float]:
        model = net(dropout=0.3)
        torch.manual_seed(5)
        watch = guard(model, torch.optim.SGD(model.parameters(), lr=0.1), order=("checkpoint",))
        with inject_oom("backward", at=2 if fail else 10**6) as drill:
            losses = [float(watch.step(batch, mean_loss)) for batch in batches]
        assert drill.raised == fail
        return losses

    assert train(True) == train(False)


def test_split_dropout_is_allowed_because_the_check_turns_it_off() -> None:
    model = net(dropout=0.3)
    watch = guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with inject_oom("forward"):
        watch.step(tokens(6), mean_loss)
    assert watch.micro_batch == 3
    assert "dropout was turned off for this check only" in str(watch.report())


def test_what_was_learned_travels_in_a_checkpoint_and_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = net()
    watch = guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with inject_oom("forward", at=1):
        watch.step(tokens(8), mean_loss)
    state = copy.deepcopy(watch.state_dict())
    assert state == {"micro_batch": 4, "failed_size": 8, "checkpointed": [], "offloading": False}
    again = guard(net())
    again.load_state_dict(state)
    assert again.micro_batch == 4
    monkeypatch.setenv("VRAMLENS_MICRO_BATCH", "3")
    assert guard(net()).micro_batch == 3
    monkeypatch.setenv("VRAMLENS_MICRO_BATCH", "nonsense")
    assert guard(net()).micro_batch is None


def test_parts_grow_back_and_stop_growing_where_they_fail() -> None:
    model, changes = net(), []
    watch = guard(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        grow_after=2,
        on_change=lambda before, after, why: changes.append((before, after, why)),
    )
    with inject_oom("forward", at=1):
        watch.step(tokens(16), mean_loss)
    for _ in range(9):
        watch.step(tokens(16), mean_loss)
    sizes = [after for _, after, _ in changes]
    assert sizes[:3] == [8, 12, 14]
    assert all(size < 16 for size in sizes)


def test_a_thousand_failures_leave_the_loss_curve_as_it_was() -> None:
    torch.manual_seed(0)
    batches = [
        {"x": torch.randn(6, 5, dtype=torch.float64), "y": torch.randn(6, 2, dtype=torch.float64)}
        for _ in range(7)
    ]

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        return (model(batch["x"]) - batch["y"]).square().mean()

    def model() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).double()

    steps = 500
    _, losses, _ = undisturbed(
        model(), [batches[i % 7] for i in range(steps)], loss_fn, torch.optim.SGD
    )
    disturbed = model()
    watch = guard(disturbed, torch.optim.SGD(disturbed.parameters(), lr=1e-2), grow_after=1)
    assert watch.verify(batches[0], loss_fn).equal
    ours, raised = [], 0
    for i in range(steps):
        watch.load_state_dict({})  # as if memory was there again
        with inject_oom(("forward", "backward")[i % 2], at=(1, 3)) as drill:
            ours.append(float(watch.step(batches[i % 7], loss_fn)))
        raised += drill.raised
    assert raised == 1000
    assert ours == pytest.approx(losses, rel=1e-9)
    assert watch.report().recovered == steps
