"""What else leads to a tensor: caches that have a model as an argument, objects that lead to others."""

from __future__ import annotations

import functools
import gc
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from vramlens.capture.names import holder_names  # noqa: E402
from vramlens.capture.names import tensor_names as names  # noqa: E402
from vramlens.capture.names.live_heap import LiveHeap  # noqa: E402
from vramlens.capture.names.tensor_names import NamedTensor, named_tensors  # noqa: E402

nn = torch.nn
LARGE = (200, 200)  # 160,000 bytes: above what other tensors must have to be named


@pytest.fixture(autouse=True)
def _only_this_tests_tensors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(holder_names, "SEARCH_SECONDS", 60.0)
    monkeypatch.setattr(names, "_MOST_OTHERS", 100_000)
    monkeypatch.setattr(names, "_WORTH_A_SEARCH", 0.0)
    gc.collect()
    yield
    gc.collect()


def named(tensor: torch.Tensor) -> NamedTensor:
    address = tensor.untyped_storage().data_ptr()
    return next(one for one in named_tensors(device_type="cpu") if one.address == address)


class Node:
    def __init__(self, parent: Node | None = None) -> None:
        self.parent = parent
        self.children: list[Node] = []
        self.latent = torch.zeros(*LARGE)
        if parent is not None:
            parent.children.append(self)


class SlottedNode:
    __slots__ = ("latent", "previous")

    def __init__(self, previous: SlottedNode | None) -> None:
        self.previous, self.latent = previous, torch.zeros(*LARGE)


class Sample:
    def __init__(self) -> None:
        self.label, self.image = 3, torch.zeros(*LARGE)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 8)

    @functools.cache  # noqa: B019
    def bias(self, length: int) -> int:
        return length


class Bounded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 8)

    @functools.lru_cache(maxsize=4)  # noqa: B019
    def bias(self, length: int) -> int:
        return length


def test_nodes_of_a_tree_lead_to_each_other() -> None:
    root = Node()
    leaf = Node(root)
    assert {named(node.latent).kept_by for node in (root, leaf)} == {".parent, .children"}


def test_so_do_those_of_a_chain_with_slots() -> None:
    last = SlottedNode(SlottedNode(None))
    assert named(last.latent).kept_by == ".previous"


def test_objects_that_know_no_other_have_no_links() -> None:
    sample = Sample()
    assert (named(sample.image).name, named(sample.image).kept_by) == ("Sample.image", "")


@pytest.mark.parametrize(("kind", "size"), [(Net, "unlimited "), (Bounded, "")])
def test_a_cache_on_a_method_has_its_model(kind: type, size: str) -> None:
    model, other = kind(), kind()
    model.bias(3)
    assert named(model.head.weight).kept_by == f"{size}lru_cache of {kind.__name__}.bias()"
    assert named(other.head.weight).kept_by == ""
    kind.bias.cache_clear()  # type: ignore[attr-defined]


def test_a_module_that_was_to_be_frozen_and_is_not() -> None:
    """``requires_grad = False`` is an attribute of the module."""
    model = nn.Sequential(Net(), Net(), Net())
    model[0].requires_grad = False
    model[1].requires_grad_(False)
    model[1].requires_grad = False
    told = [named(part.head.weight).unfrozen for part in model]
    assert told == ["model.0", "", ""]


# Each is read once, however many lead to it


class Reads:
    """How often a function or method is asked about each object: its last argument.

    Attributes:
        times: by id; nothing here keeps the objects, which would say who holds them.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.times: Counter[int] = Counter()
        answer = getattr(owner, name)

        def counted(*arguments: Any) -> Any:
            self.times[id(arguments[-1])] += 1
            return answer(*arguments)

        monkeypatch.setattr(owner, name, counted)


class Visit:
    """Knows the visit before it, and when it was looked at."""

    def __init__(self, before: Visit | None) -> None:
        self.before, self.moments = before, [0, 1]
        self.state = torch.zeros(*LARGE)


def visits(count: int) -> Visit:
    """The last of a chain."""
    last = Visit(None)
    for _ in range(count - 1):
        last = Visit(last)
    return last


def chain_of(visit: Visit | None) -> Iterator[Visit]:
    while visit is not None:
        yield visit
        visit = visit.before


def test_the_links_of_a_class_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each tensor that such an object keeps."""
    last, reads = visits(40), Reads(monkeypatch, LiveHeap, "attributes")
    assert named(last.state).kept_by == ".before"
    times = [reads.times[id(visit)] for visit in chain_of(last)]
    assert 0 < max(times) < len(times)


def test_lists_beside_links_are_not_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their first elements say whether such objects are in them."""
    last, reads = visits(4), Reads(monkeypatch, LiveHeap, "edges")
    assert named(last.state).kept_by == ".before"
    assert not any(reads.times[id(visit.moments)] for visit in chain_of(last))


def test_a_cache_is_named_once_for_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many of its calls had that as an argument."""
    model, reads = Net(), Reads(monkeypatch, holder_names, "name_of_cache")
    for length in range(50):
        model.bias(length)
    assert named(model.head.weight).kept_by == "unlimited lru_cache of Net.bias()"
    assert reads.times[id(Net.bias)] == 1
    Net.bias.cache_clear()


def test_what_is_inside_of_many_modules_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outermost of those that were to be frozen is told."""
    innermost = model = nn.Linear(8, 8)
    for _ in range(20):
        model.requires_grad = False
        model = nn.Sequential(model, nn.Linear(8, 8))
    model.requires_grad = False
    reads = Reads(monkeypatch, LiveHeap, "storages")
    assert named(innermost.weight).unfrozen == "model"
    assert reads.times[id(innermost.weight)] == reads.times[id(model[1].weight)] > 0


def test_frozen_parameters_that_an_optimizer_has() -> None:
    model, other = Net(), Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.head.weight.requires_grad_(False)
    other.head.weight.requires_grad_(False)
    assert named(model.head.weight).frozen is True
    assert named(model.head.weight).to_dict()["frozen"] is True
    assert named(other.head.weight).frozen is None  # no optimizer has it
    model.head.weight.requires_grad_(True)
    assert "frozen" not in named(model.head.weight).to_dict()
    assert optimizer.param_groups


class Pruned(Exception):
    pass


def test_models_of_calls_that_a_kept_exception_keeps() -> None:
    def objective(trial: int) -> set[str]:
        model = Net()
        if trial < 2:
            raise Pruned
        del model
        kept_by = {named.name: named.kept_by for named in named_tensors(device_type="cpu")}
        return {keeper for keeper in kept_by.values() if keeper.startswith("local of ")}

    failed = []
    keepers: set[str] = set()
    for trial in range(3):
        try:
            keepers = objective(trial)
        except Pruned as error:
            failed.append(error)
    assert keepers == {"local of objective()", "local of objective(), call 2"}
    failed.clear()


def test_hooks_are_named_through_what_a_partial_keeps() -> None:
    layer = nn.Linear(2, 2)
    source = torch.zeros(*LARGE)
    layer.register_forward_hook(functools.partial(print, source=source))
    address = source.untyped_storage().data_ptr()
    del source
    name = next(one.name for one in named_tensors(device_type="cpu") if one.address == address)
    assert re.fullmatch(r"layer\._forward_hooks\[\d+\]\['source'\]|.*_forward_hooks.*", name)
