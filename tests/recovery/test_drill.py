"""inject_oom: faithful failures, where a real one would strike."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

from recovery.training import mean_loss, net, tokens
from vramlens.errors import UsageError
from vramlens.recovery.drill import inject_oom
from vramlens.recovery.memory_errors import OUT_OF_MEMORY, failure_of, kind_of, let_go


def step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]
) -> None:
    mean_loss(model, batch).backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("phase", ["forward", "backward", "step"])
def test_the_third_fails_and_no_other(phase: str) -> None:
    model, batch = net(), tokens()
    optimizer = torch.optim.AdamW(model.parameters())
    with inject_oom(phase, at=3) as drill:
        for number in range(1, 6):
            if number == 3:
                with pytest.raises(
                    torch.OutOfMemoryError, match=rf"Tried to allocate 2.00 GiB.*{phase} 3\]"
                ):
                    step(model, optimizer, batch)
            else:
                step(model, optimizer, batch)
    assert (drill.seen, drill.raised) == (5, 1)
    step(model, optimizer, batch)  # all hooks are gone
    assert drill.seen == 5


def test_a_forward_fails_in_the_middle_with_its_activations_alive() -> None:
    model, batch = net(), tokens()
    seen: list[weakref.ref[torch.Tensor]] = []
    model.tokens.register_forward_hook(lambda *a: seen.append(weakref.ref(a[2])))
    with inject_oom("forward"), pytest.raises(torch.OutOfMemoryError) as caught:
        mean_loss(model, batch)
    error = caught.value
    del caught
    gc.collect()
    assert seen[0]() is not None  # the traceback pins the frame, as in a real failure
    assert kind_of(error) == OUT_OF_MEMORY
    assert failure_of(error).tried_bytes == 2 << 30
    let_go(error)
    assert seen[0]() is None


def test_a_backward_fails_with_some_gradients_there_and_others_not() -> None:
    model, batch = net(), tokens()
    with inject_oom("backward"), pytest.raises(torch.OutOfMemoryError):
        mean_loss(model, batch).backward()
    assert model.head.weight.grad is not None
    assert model.blocks[1].up.weight.grad is not None
    assert model.tokens.weight.grad is None


def test_a_step_fails_half_way_as_the_known_bugs_do() -> None:
    model, batch = net(), tokens()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    mean_loss(model, batch).backward()
    with inject_oom("step"), pytest.raises(torch.OutOfMemoryError):
        optimizer.step()
    with pytest.raises(
        KeyError, match="exp_avg_sq"
    ):  # a plain retry after a failure in the first step
        optimizer.step()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    optimizer.step()
    with inject_oom("step"), pytest.raises(torch.OutOfMemoryError):
        optimizer.step()
    optimizer.step()
    counts = {int(state["step"]) for state in optimizer.state.values()}
    assert counts == {2, 3}  # a plain retry counts one parameter twice


@pytest.mark.parametrize("kind", ["SGD", "Adam", "Adagrad", "RMSprop"])
@pytest.mark.parametrize("foreach", [True, False])
def test_every_optimizer_can_fail(kind: str, foreach: bool) -> None:
    model, batch = net(), tokens()
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01, foreach=foreach)
    step(model, optimizer, batch)
    mean_loss(model, batch).backward()
    with inject_oom("step") as drill, pytest.raises(torch.OutOfMemoryError):
        optimizer.step()
    assert drill.raised == 1


def test_a_fused_step_fails_before_it_changes_a_parameter() -> None:
    model, batch = net(torch.float32), tokens()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    step(model, optimizer, batch)
    before = copy.deepcopy(model.state_dict())
    mean_loss(model, batch).backward()
    with inject_oom("step"), pytest.raises(torch.OutOfMemoryError):
        optimizer.step()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_recomputation_is_no_forward() -> None:
    from torch.utils.checkpoint import checkpoint

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    with inject_oom("forward", at=3) as drill:
        for _ in range(2):
            checkpoint(model, torch.randn(2, 4), use_reentrant=False).sum().backward()
    assert drill.seen == 2


def test_the_rank_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = net(), tokens()
    monkeypatch.setenv("RANK", "1")
    with inject_oom("forward", rank=0) as drill:
        mean_loss(model, batch)
    assert drill.seen == 0
    with inject_oom("forward", rank=1), pytest.raises(torch.OutOfMemoryError):
        mean_loss(model, batch)


def test_several_and_every() -> None:
    model, batch = nn.Linear(3, 3), torch.randn(2, 3)
    with inject_oom("forward", at=(1, 3)) as drill:
        for number in range(1, 5):
            if number in (1, 3):
                with pytest.raises(torch.OutOfMemoryError):
                    model(batch)
            else:
                model(batch)
    assert drill.raised == 2
    with inject_oom("forward", every=2) as drill:
        model(batch)
        with pytest.raises(torch.OutOfMemoryError):
            model(batch)


@pytest.mark.parametrize(
    ("phase", "options"), [("later", {}), ("step", {"at": 0}), ("step", {"every": 0})]
)
def test_nonsense_is_refused(phase: str, options: dict[str, int]) -> None:
    with pytest.raises(UsageError), inject_oom(phase, **options):
        pass


def test_a_drill_is_of_the_backward_unless_told_otherwise() -> None:
    with inject_oom() as drill:
        assert drill.phase == "backward"
