"""What modules hold is named by them, not by the optimizer that holds it, too."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import vramlens  # noqa: E402

PROGRAM = """
class Gate(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.projection = torch.nn.Linear(64, 64)

    def forward(self, x):
        hidden = x * 2
        self.projection.weight.register_hook(lambda grad: grad * hidden.mean())
        return self.projection(hidden)


class Tower(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.gate = torch.nn.Linear(64, 64), Gate()

    def forward(self, x):
        return self.gate(self.trunk(x).detach())


class Trainer:
    def __init__(self):
        model = Tower()
        self.optimizer = torch.optim.Adam(model.parameters())
        self.model = model


def train(watch):
    optimizer = HOLDER
    for _ in range(8):
        optimizer.zero_grad()
        (model if trainer is None else trainer.model)(torch.ones(64, 64)).sum().backward()
        optimizer.step()
        watch.step()
    return watch.report()
"""
VARIABLES = "model = Tower(); optimizer = torch.optim.Adam(model.parameters()); trainer = None"


@pytest.mark.parametrize(
    "holder",
    [VARIABLES, "None; trainer = Trainer(); optimizer = trainer.optimizer"],
    ids=["variables", "attributes"],
)
def test_a_parameter_is_called_by_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: str
) -> None:
    path = tmp_path / "towers.py"
    source = PROGRAM.replace("optimizer = HOLDER", holder.replace("None; ", ""))
    path.write_text(source)
    module = types.ModuleType(path.stem)
    module.__dict__.update(torch=torch, __file__=str(path))
    exec(compile(source, str(path), "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, path.stem, module)
    (leak,) = module.train(vramlens.LeakWatch()).found
    assert leak.owner.name == "Gate.projection.weight._backward_hooks"
    assert leak.owner.source.startswith("self.projection.weight.register_hook(")
    assert "call handle.remove()" in leak.fix
