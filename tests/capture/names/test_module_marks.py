"""Module marks: which module asked, forward and backward, without a trace in what the program
computes.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from support.programs import python  # noqa: E402
from vramlens.capture.names.module_marks import ModuleMarks  # noqa: E402
from vramlens.capture.names.module_paths import ModulePaths  # noqa: E402


class Allocations:
    """Stands in for the allocator's mark, which each thread has its own of, and notes it for
    each operator.
    """

    def __init__(self) -> None:
        self.mark = threading.local()
        self.seen: list[tuple[str, str]] = []

    def set(self, mark: str) -> None:
        self.mark.text = mark

    @property
    def now(self) -> str:
        return getattr(self.mark, "text", "")

    def note(self, name: str) -> None:
        self.seen.append((name, self.now))


ALLOCATIONS = Allocations()


class Probe(torch.autograd.Function):
    """An operator that notes under which mark its forward and its backward run."""

    @staticmethod
    def forward(ctx: Any, x: Any, name: str) -> Any:
        ctx.name = name
        ALLOCATIONS.note(f"{name}+")
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        ALLOCATIONS.note(f"{ctx.name}-")
        return grad * 1, None


class Leaf(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.weight = name, nn.Parameter(torch.ones(3))

    def forward(self, x: Any) -> Any:
        return Probe.apply(Probe.apply(x * self.weight, f"{self.name}.first"), f"{self.name}.last")


class Block(nn.Module):
    def __init__(self, name: str, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.name, self.checkpointed = (
            Leaf(f"{name}.a"),
            Leaf(f"{name}.b"),
            name,
            checkpointed,
        )

    def body(self, x: Any) -> Any:
        y = Probe.apply(self.a(x), f"{self.name}.between")
        return Probe.apply(self.b(y) + x, f"{self.name}.end")

    def forward(self, x: Any) -> Any:
        return checkpoint(self.body, x, use_reentrant=False) if self.checkpointed else self.body(x)


class Model(nn.Module):
    def __init__(self, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.embed = Leaf("embed")
        self.blocks = nn.ModuleList([Block("0", checkpointed=checkpointed), Block("1")])
        self.head = nn.Sequential(Leaf("head"), nn.Identity())

    def forward(self, x: Any) -> Any:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def begin() -> ModuleMarks:
    marks = ModuleMarks(ALLOCATIONS.set, lambda: ALLOCATIONS.now, ModulePaths())
    marks.install()
    marks.start()
    return marks


@pytest.fixture(autouse=True)
def _no_hooks_stay() -> Iterator[None]:
    from torch.nn.modules import module

    tables = (
        module._global_forward_pre_hooks,
        module._global_forward_hooks,
        module._global_forward_hooks_always_called,
    )
    before = [dict(table) for table in tables]
    yield
    for table, was in zip(tables, before, strict=True):
        table.clear()
        table.update(was)


@pytest.fixture
def marks() -> Iterator[ModuleMarks]:
    ALLOCATIONS.seen.clear()
    ALLOCATIONS.set("")
    gc.collect()  # other tests' models
    marks = begin()
    yield marks
    marks.stop()


PATHS = {
    "embed.first": "model.embed",
    "embed.last": "model.embed",
    "0.a.first": "model.blocks.0.a",
    "0.a.last": "model.blocks.0.a",
    "0.between": "model.blocks.0",
    "0.b.first": "model.blocks.0.b",
    "0.b.last": "model.blocks.0.b",
    "0.end": "model.blocks.0",
    "1.a.first": "model.blocks.1.a",
    "1.between": "model.blocks.1",
    "1.b.last": "model.blocks.1.b",
    "1.end": "model.blocks.1",
    "head.first": "model.head.0",
    "head.last": "model.head.0",
    "loss": "",
}


@pytest.mark.parametrize("checkpointed", [False, True])
def test_forward_and_backward_carry_the_module(marks: ModuleMarks, checkpointed: bool) -> None:
    model = Model(checkpointed=checkpointed)
    for _ in range(2):
        ALLOCATIONS.seen.clear()
        Probe.apply(model(torch.ones(3)), "loss").sum().backward()
        assert ALLOCATIONS.now == ""
        seen = ALLOCATIONS.seen
        for name, path in PATHS.items():
            assert {mark for which, mark in seen if which == f"{name}+"} == {path}, (
                f"forward of {name}"
            )
            assert {mark for which, mark in seen if which == f"{name}-"} == {path}, (
                f"backward of {name}"
            )
        times = [which for which, _ in seen].count("0.a.first+")
        assert times == (2 if checkpointed else 1)


def test_one_input_of_several_modules_keeps_its_own_module(marks: ModuleMarks) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.q, self.k, self.v = Leaf("norm"), Leaf("q"), Leaf("k"), Leaf("v")

        def forward(self, x: Any) -> Any:
            x = self.norm(x)
            return self.q(x) + self.k(x) + self.v(x)

    Attention()(torch.ones(3)).sum().backward()
    assert dict(ALLOCATIONS.seen)["norm.last-"] == "model.norm"
    assert dict(ALLOCATIONS.seen)["k.first-"] == "model.k"


def test_eval_mode_with_gradients_and_disabled_gradients_are_marked(marks: ModuleMarks) -> None:
    model = Model().eval()
    model(torch.ones(3))
    assert dict(ALLOCATIONS.seen)["0.a.first+"] == "model.blocks.0.a [eval+grad]"
    for without_grad in (torch.no_grad, torch.inference_mode):
        for mode in (model.eval, model.train):
            mode()
            ALLOCATIONS.seen.clear()
            with without_grad():
                model(torch.ones(3))
            assert dict(ALLOCATIONS.seen)["0.a.first+"] == "model.blocks.0.a [no grad]"
    model.train()
    model.blocks[0].eval()  # a frozen part of a model that trains is no mistake
    ALLOCATIONS.seen.clear()
    model(torch.ones(3))
    assert dict(ALLOCATIONS.seen)["0.a.first+"] == "model.blocks.0.a"


def test_an_error_in_forward_leaves_no_mark_behind(marks: ModuleMarks) -> None:
    class Fails(nn.Module):
        def forward(self, x: Any) -> Any:
            raise KeyError("lost")

    model = nn.Sequential(Leaf("a"), Fails())
    with pytest.raises(KeyError, match="lost"):
        model(torch.ones(3))
    assert ALLOCATIONS.now == ""


def test_an_interrupt_is_forgotten_at_the_next_step(marks: ModuleMarks) -> None:
    class Interrupted(nn.Module):
        def forward(self, x: Any) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        nn.Sequential(Leaf("a"), Interrupted())(torch.ones(3))
    marks.forget_entered()
    Leaf("later")(torch.ones(3))
    assert ALLOCATIONS.now == ""


def run_training(seed: int) -> tuple[list[float], Any, list[str]]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.GELU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    losses, nodes = [], []
    for _ in range(5):
        loss = nn.functional.mse_loss(model(torch.randn(4, 8)), torch.randn(4, 4))
        waiting, seen = [loss.grad_fn], set()
        while waiting:
            node = waiting.pop()
            if node is not None and node not in seen:
                seen.add(node)
                nodes.append(node.name())
                waiting += [edge[0] for edge in node.next_functions]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, torch.get_rng_state(), nodes


def test_losses_random_numbers_and_graph_stay_bit_for_bit() -> None:
    before = run_training(1)
    marks = begin()
    try:
        during = run_training(1)
    finally:
        marks.stop()
    after = run_training(1)
    assert before[0] == during[0] == after[0]
    assert torch.equal(before[1], during[1])
    assert before[2] == during[2]


def test_no_tensor_and_no_module_is_kept_alive(marks: ModuleMarks) -> None:
    gc.disable()
    try:
        model = Leaf("x")
        output = model(torch.ones(3))
        gone = [
            weakref.ref(output),
            weakref.ref(output.grad_fn.next_functions[0][0]),
            weakref.ref(model),
        ]
        output.sum().backward()
        del output, model
        assert [ref() for ref in gone] == [None] * 3
    finally:
        gc.enable()


def test_a_compiler_sees_the_same_program() -> None:
    import torch._dynamo

    def graph_of() -> list[Any]:
        graphs: list[Any] = []

        def keep(module: Any, _inputs: Any) -> Any:
            graphs.append(
                [
                    (node.op, str(node.target))
                    for node in module.graph.nodes
                    if node.op.startswith("call")
                ]
            )
            return module.forward

        torch._dynamo.reset()
        model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
        torch.compile(model, backend=keep)(torch.ones(2, 3)).sum().backward()
        return graphs

    before = graph_of()
    marks = begin()
    try:
        during = graph_of()
    finally:
        marks.stop()
        torch._dynamo.reset()
    assert len(during) == 1
    assert len(during[0]) == 3
    assert during == before


def test_starting_and_stopping_compiles_nothing_anew(marks: ModuleMarks) -> None:
    import torch._dynamo

    torch._dynamo.reset()
    compiled: list[int] = []

    def keep(module: Any, _inputs: Any) -> Any:
        compiled.append(1)
        return module.forward

    model = torch.compile(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), backend=keep)
    for switch in (marks.stop, marks.start, marks.stop):
        model(torch.ones(2, 3)).sum().backward()
        switch()
    model(torch.ones(2, 3)).sum().backward()
    assert len(compiled) == 1


COMPILED_AUTOGRAD = """
import torch
from torch._dynamo import compiled_autograd
from vramlens.capture.names.module_marks import ModuleMarks
from vramlens.capture.names.module_paths import ModulePaths

marks = ModuleMarks(lambda text: None, lambda: "", ModulePaths())
marks.install()
marks.start()
model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
loss = model(torch.ones(2, 3)).sum()
with compiled_autograd._enable(torch.compile(backend="eager", fullgraph=True)):
    loss.backward()
print(model[0].weight.grad is not None)
"""


def test_compiled_autograd_sees_no_hooks(tmp_path: Path) -> None:
    answer = python(tmp_path, "-c", COMPILED_AUTOGRAD)
    assert answer.stdout == "True\n", answer.stderr


def test_a_tensor_subclass_is_not_asked_anything(marks: ModuleMarks) -> None:
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if "grad_fn" in str(func):
                raise AssertionError("asked for grad_fn")
            return super().__torch_function__(func, types, args, kwargs or {})

    nn.Sequential(nn.Identity(), nn.Identity())(torch.ones(3).as_subclass(Loud))


def test_threads_have_marks_of_their_own(marks: ModuleMarks) -> None:
    model = nn.Sequential(Leaf("outer"))
    entered, may_go = threading.Event(), threading.Event()

    class Waits(nn.Module):
        def forward(self, x: Any) -> Any:
            entered.set()
            assert may_go.wait(300)
            return x

    other = threading.Thread(target=nn.Sequential(Waits()), args=(torch.ones(3),))
    other.start()
    assert entered.wait(300)
    model(torch.ones(3))
    assert ALLOCATIONS.now == ""
    may_go.set()
    other.join()


def test_autocast_is_noticed_where_a_module_runs_under_it() -> None:
    marks, layer = begin(), nn.Linear(2, 2)
    layer(torch.ones(1, 2))
    assert not marks.has_seen_autocast
    torch.set_autocast_enabled("cuda", True)
    try:
        layer(torch.ones(1, 2))
    finally:
        torch.set_autocast_enabled("cuda", False)
    assert marks.has_seen_autocast
