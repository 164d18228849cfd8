"""What else leads to a tensor: caches that have a model as an argument, objects that lead to others."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from vramlens.capture.names import holder_names  # noqa: E402
from vramlens.capture.names import tensor_names as names  # noqa: E402
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
