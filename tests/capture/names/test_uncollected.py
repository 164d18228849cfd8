"""Storages that only garbage keeps: decided as Python's collector decides it."""

from __future__ import annotations

import functools
import gc
import re
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from vramlens.capture.names import uncollected  # noqa: E402
from vramlens.capture.names.live_heap import LiveHeap  # noqa: E402
from vramlens.capture.names.tensor_names import named_tensors  # noqa: E402
from vramlens.capture.process.tracked_objects import everything_alive  # noqa: E402

nn = torch.nn
ELEMENTS = 300_000  # more than a MiB: whose holders are looked for

pytestmark = pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(),
    reason="a free-threaded Python counts references in other ways",
)


@pytest.fixture(autouse=True)
def _no_collection(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(uncollected, "SECONDS", 60.0)
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


def circles_by_address() -> dict[int, str]:
    heap = LiveHeap(torch, "cpu", everything_alive())
    circles = uncollected.uncollected_storages(heap, heap.index(float("inf")))
    heap.clear()
    return defaultdict(str, {storage.address: circle for storage, circle in circles.items()})


def address_of(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


class Node:
    def __init__(self, parent: Node | None = None) -> None:
        self.parent = parent
        self.children: list[Node] = []
        self.latent = torch.zeros(ELEMENTS)
        if parent is not None:
            parent.children.append(self)


class Runner:
    """A hook that is a method of what has the model closes the circle."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU())
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.handle = self.model[1].register_forward_hook(self._note)

    def _note(self, *_: Any) -> None: ...

    def fit(self) -> list[int]:
        self.model(torch.randn(4, 512)).sum().backward()
        self.optimizer.step()
        weight = self.model[0].weight
        return [address_of(part) for part in (weight, self.optimizer.state[weight]["exp_avg"])]


class Wrapped:
    def __init__(self, wrap: Callable[[Wrapped], Any]) -> None:
        self.latent = torch.zeros(ELEMENTS)
        self.wrapped = wrap(self)

    def go(self) -> None: ...


def test_a_tree_whose_nodes_know_their_parent() -> None:
    root = Node()
    child = Node(root)
    addresses = [address_of(node.latent) for node in (root, child)]
    circles = circles_by_address()
    assert [circles[address] for address in addresses] == ["", ""]
    del root  # the child still leads to it
    circles = circles_by_address()
    assert [circles[address] for address in addresses] == ["", ""]
    del child
    circles = circles_by_address()
    assert {circles[address] for address in addresses} <= {
        "Node.children[0].parent",
        "Node.parent.children[0]",
    }


def test_a_model_with_a_hook_that_leads_back() -> None:
    Runner().fit()  # what PyTorch imports and makes at first
    gc.collect()
    addresses = Runner().fit()
    circles = circles_by_address()
    for address in addresses:
        assert re.fullmatch(
            r"Sequential\.1\._forward_hooks\[\d+\] -> Runner\.model", circles[address]
        )


def test_a_removed_hook_leaves_no_circle() -> None:
    runner = Runner()
    runner.fit()
    runner.handle.remove()
    addresses = runner.fit()
    del runner  # all of it is freed at once
    assert not any(circles_by_address()[address] for address in addresses)


@pytest.mark.parametrize(
    ("wrap", "words"),
    [
        (lambda owner: owner, "Wrapped.wrapped"),
        (lambda owner: owner.go, "Wrapped.wrapped -> Wrapped"),
        (lambda owner: functools.partial(owner.go, 3), "Wrapped.wrapped.func"),
        (lambda owner: lambda: owner, "Wrapped.wrapped"),
        (lambda owner: {"a": [owner]}, "Wrapped.wrapped.a[0]"),
    ],
)
def test_ways_back(wrap: Callable[[Wrapped], Any], words: str) -> None:
    address = address_of(Wrapped(wrap).latent)
    assert circles_by_address()[address] in (words, words.partition(" -> ")[0])


def test_a_weak_reference_is_no_way_back() -> None:
    address = address_of(Wrapped(weakref.ref).latent)
    assert not circles_by_address()[address]


def test_a_view_that_is_held_keeps_the_storage() -> None:
    owner = Wrapped(lambda owner: owner)
    view, address = owner.latent[:10], address_of(owner.latent)
    del owner
    assert circles_by_address()[address] == ""
    del view
    assert circles_by_address()[address] != ""


def test_what_a_graph_keeps_is_no_garbage() -> None:
    owner = Wrapped(lambda owner: owner)
    factor = torch.ones(ELEMENTS, requires_grad=True)
    loss, address = (owner.latent * factor).sum(), address_of(owner.latent)
    del owner
    assert circles_by_address()[address] == ""
    del loss
    assert circles_by_address()[address] != ""


def test_no_time_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    address = address_of(Wrapped(lambda owner: owner).latent)
    monkeypatch.setattr(uncollected, "SECONDS", 0.0)
    assert not circles_by_address()[address]


def test_a_result_that_autograd_saved_is_no_garbage() -> None:
    """It is an alias that Python never sees."""
    weight = torch.ones(ELEMENTS, requires_grad=True)
    owner = Wrapped(lambda owner: owner)
    owner.latent = torch.exp(weight)
    loss, address = (owner.latent * 1).sum(), int(owner.latent.untyped_storage().data_ptr())
    del owner
    assert not circles_by_address()[address]
    del loss


def test_a_gradient_that_is_held_is_no_garbage() -> None:
    model = nn.Linear(600, 600)
    model.me = [model]
    model(torch.randn(4, 600)).sum().backward()
    kept = [parameter.grad for parameter in model.parameters()]
    weight, gradient = address_of(model.weight), address_of(kept[0])
    del model
    circles = circles_by_address()
    assert circles[weight]
    assert not circles[gradient]


def test_what_nothing_but_the_look_holds_is_no_garbage() -> None:
    """Another thread has let go of it since the look began, and it is in no cycle."""
    tensors = [torch.zeros(ELEMENTS)]
    address = address_of(tensors[0])
    heap = LiveHeap(torch, "cpu", everything_alive())
    index = heap.index(float("inf"))
    del tensors
    circles = uncollected.uncollected_storages(heap, index)
    heap.clear()
    assert address not in {storage.address for storage in circles}


def test_frozen_objects_are_left_alone() -> None:
    address = address_of(Wrapped(lambda owner: owner).latent)
    gc.freeze()
    try:
        assert not circles_by_address()[address]
    finally:
        gc.unfreeze()


class Ring:
    def __init__(self, latent: torch.Tensor | None) -> None:
        self.latent, self.next_node = latent, self


def test_a_long_way_back_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Ring(torch.zeros(ELEMENTS))
    address, last = address_of(first.latent), first
    for _ in range(20_000):
        last.next_node = Ring(None)
        last = last.next_node
    last.next_node = first
    del first, last
    monkeypatch.setattr(uncollected, "_MOST_STEPS", 50)
    assert circles_by_address()[address] == "Ring"


class HostileClass(type):
    def __eq__(cls, other: object) -> bool:
        raise AssertionError("the program's own code ran")

    __hash__ = None  # type: ignore[assignment]


def test_classes_and_functions_run_no_code_of_their_own() -> None:
    class Hostile(nn.Module, metaclass=HostileClass):
        pass

    class HostileDict(dict):  # type: ignore[type-arg]
        def __bool__(self) -> bool:
            raise AssertionError("the program's own code ran")

        __len__ = __bool__  # type: ignore[assignment]

    def function(**_: Any) -> None: ...

    function.__kwdefaults__ = HostileDict(latent=torch.zeros(ELEMENTS))
    modules = [Hostile(), Hostile()]
    owner = Wrapped(lambda owner: owner)
    address = address_of(owner.latent)
    names = {
        named.address: named.name for named in named_tensors(device_type="cpu", with_garbage=True)
    }
    assert names[address].endswith("latent")
    assert len(modules) == 2


def test_names_tell_it() -> None:
    """Also of what is too small, or too much, to be given a name otherwise."""
    addresses = {address_of(Wrapped(lambda owner: owner).latent) for _ in range(3)}
    circles = {
        named.address: named.circle for named in named_tensors(device_type="cpu", with_garbage=True)
    }
    assert {circles[address] for address in addresses} == {"Wrapped.wrapped"}


class Linked:
    def __init__(self) -> None:
        self.latent = torch.zeros(ELEMENTS)
        self.links: list[Linked] = []


@given(
    links=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12),
    roots=st.sets(st.integers(0, 5), max_size=2),
)
@settings(max_examples=25, deadline=None)
def test_it_is_what_the_collector_would_free(links: list[tuple[int, int]], roots: set[int]) -> None:
    objects = [Linked() for _ in range(6)]
    for start, end in links:
        objects[start].links.append(objects[end])
    watched = {address_of(each.latent): weakref.ref(each.latent) for each in objects}
    held = [objects[root] for root in roots]
    del objects
    uncounted = {address: tensor for address, tensor in watched.items() if tensor() is not None}
    circles = circles_by_address()
    garbage = {address for address in uncounted if circles[address]}
    gc.collect()
    assert garbage == {address for address, tensor in uncounted.items() if tensor() is None}
    del held
