"""What an optimizer keeps for its parameters: once for each, or more and more."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from vramlens import LeakWatch
from vramlens.ground.verdict import Verdict
from vramlens.live.growth.births import Births
from vramlens.live.leaks.leak_report import LiveLeak

torch = pytest.importorskip("torch")

STEPS = 24
ALARMS = (Verdict.PROVEN, Verdict.LIKELY)


def leaks_of(step: Callable[[int], None]) -> list[LiveLeak]:
    """What is told at the end of steps, the largest first."""
    watch = LeakWatch()
    for number in range(STEPS):
        step(number)
        watch.step()
    return sorted(watch.report().leaks, key=lambda leak: -leak.bytes_per_step)


class Layers:
    """Layers that one optimizer trains, from a number of them on."""

    def __init__(self, count: int, optimizer_class: Any = torch.optim.Adam) -> None:
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(count))
        self.optimizer = optimizer_class(self.layers.parameters())

    def train(self) -> None:
        """One step."""
        self.optimizer.zero_grad()
        x = torch.randn(4, 64)
        for layer in self.layers:
            x = layer(x)
        x.square().mean().backward()
        self.optimizer.step()


class Recording(torch.optim.SGD):
    """An optimizer that keeps something under a new name at each step."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=1e-3)
        self.steps = 0

    def step(self, closure: Any = None) -> Any:
        """One step."""
        self.steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter][f"gradient {self.steps}"] = parameter.grad.clone()
        return super().step(closure)


class Listing(Recording):
    """An optimizer that keeps a list of each parameter's gradients."""

    def step(self, closure: Any = None) -> Any:
        """One step."""
        for group in self.param_groups:
            for parameter in group["params"]:
                history = self.state[parameter].setdefault("history", [])
                history.append(parameter.grad.clone())
        return torch.optim.SGD.step(self, closure)


@pytest.mark.parametrize("seen_share", [1.0, 0.6])
def test_state_of_layers_that_are_unfrozen_one_after_the_other(
    seen_share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine there is no time to look at each step's end."""
    look = Births._look_if_there_is_time
    chance = random.Random(1)
    monkeypatch.setattr(
        Births,
        "_look_if_there_is_time",
        lambda births, *given: chance.random() < seen_share and look(births, *given),
    )
    model = Layers(STEPS)
    model.layers.requires_grad_(False)
    frozen = list(model.layers)

    def step(number: int) -> None:
        if number % 3 == 0:
            frozen.pop().requires_grad_(True)
        model.train()

    leaks = leaks_of(step)
    assert not [leak for leak in leaks if leak.verdict in ALARMS]
    state = next(leak for leak in leaks if leak.owner.name == "Layers.optimizer.state")
    assert state.verdict == Verdict.NOT_A_PROBLEM
    assert state.reason.startswith("training makes it once for each parameter")


def test_state_of_parameters_that_keep_coming() -> None:
    model = Layers(1)

    def step(number: int) -> None:
        layer = torch.nn.Linear(64, 64)
        model.layers[0] = layer
        model.optimizer.add_param_group({"params": list(layer.parameters())})
        model.train()

    leak = leaks_of(step)[0]
    assert leak.verdict == Verdict.PROVEN
    assert leak.owner.source.startswith("model.optimizer.add_param_group(")


class Member:
    """A model that is trained for some steps by an optimizer that is dropped then."""

    def __init__(self) -> None:
        self.layer = torch.nn.Linear(64, 64)

    def train(self, optimizer: Any) -> None:
        """One step."""
        optimizer.zero_grad()
        self.layer(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()


def test_gradients_of_members_that_are_trained_in_turn() -> None:
    """They stay when the optimizers are gone."""
    members = [Member() for _ in range(STEPS // 3)]
    optimizers: list[Any] = []

    def step(number: int) -> None:
        member = members[number // 3]
        if number % 3 == 0:
            optimizers[:] = [torch.optim.Adam(member.layer.parameters())]
        member.train(optimizers[0])

    leaks = leaks_of(step)
    assert not [leak for leak in leaks if leak.verdict in ALARMS]
    assert leaks[0].reason.startswith("training makes it once for each parameter")


def test_members_that_keep_coming_leave_their_gradients() -> None:
    members = []

    def step(number: int) -> None:
        member = Member()
        members.append(member)
        member.train(torch.optim.Adam(member.layer.parameters()))

    leak = leaks_of(step)[0]
    assert leak.verdict == Verdict.PROVEN
    assert leak.owner.source == "members.append(member)"


@pytest.mark.parametrize("optimizer_class", [Recording, Listing])
def test_state_that_grows_under_each_parameter(optimizer_class: Any) -> None:
    model = Layers(1, optimizer_class)
    leak = leaks_of(lambda _: model.train())[0]
    assert leak.verdict == Verdict.PROVEN
    assert "state[<Parameter>]" in leak.owner.name


def test_state_of_optimizers_that_keep_coming() -> None:
    model, optimizers = Layers(1), []

    def step(number: int) -> None:
        model.optimizer = torch.optim.Adam(model.layers.parameters())
        optimizers.append(model.optimizer)
        model.train()

    leak = leaks_of(step)[0]
    assert leak.verdict == Verdict.PROVEN
    assert "optimizers" in " ".join(leak.owner.chain)


def test_state_of_parameters_that_no_group_has() -> None:
    model = Layers(STEPS)
    model.layers.requires_grad_(False)
    layers = list(model.layers)

    def step(number: int) -> None:
        layers.pop().requires_grad_(True)
        model.train()
        for group in model.optimizer.param_groups:
            group["params"] = [kept for kept in group["params"] if kept.grad is None]

    leak = leaks_of(step)[0]
    assert leak.verdict == Verdict.PROVEN
