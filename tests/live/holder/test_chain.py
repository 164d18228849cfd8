"""How one object holds another, in the words of a chain."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import pytest

torch = pytest.importorskip("torch")
from vramlens.live.heap.search import Search  # noqa: E402
from vramlens.live.heap.tensors import loaded  # noqa: E402
from vramlens.live.holder.chain import Edge, link_between  # noqa: E402


class Holder:
    kept: ClassVar = ["of the class"]

    def __init__(self) -> None:
        self.history = ["of the instance"]


def closing_over(part: object) -> Any:
    return lambda: part


def defaulting(part: list[str] = ["of the default"]) -> list[str]:  # noqa: B006
    return part


PART = ["a part"]
HOLDER, CLOSURE, MODULE = Holder(), closing_over(PART), torch.nn.Linear(2, 2)
EDGES = {
    "list": ([PART], [PART], Edge("index", "0")),
    "dict": ({"key": PART}, [PART], Edge("key", "'key'")),
    "attribute": (
        HOLDER,
        [HOLDER.__dict__, HOLDER.history],
        Edge("attribute", "history", passed=2),
    ),
    "class": (Holder, [dict(Holder.__dict__), Holder.kept], Edge("class attribute", "kept", 2)),
    "closure": (
        CLOSURE,
        [CLOSURE.__closure__, CLOSURE.__closure__[0], PART],
        Edge("closure", "part", passed=3),
    ),
    "default": (
        defaulting,
        [defaulting.__defaults__, (defaulting.__defaults__ or ())[0]],
        Edge("default", "part", passed=2),
    ),
    "partial": (functools.partial(print, PART), [(PART,), PART], Edge("argument", "", passed=2)),
    "method": (HOLDER.__init__, [HOLDER], Edge("self")),  # type: ignore[misc]
    "parameter": (
        MODULE,
        [MODULE.__dict__, MODULE._parameters, MODULE.weight],
        Edge("attribute", "weight", passed=3),
    ),
    "nothing": (object(), [PART], Edge("other")),
}


@pytest.mark.parametrize("name", EDGES)
def test_edge(name: str) -> None:
    torch_objects = loaded()
    assert torch_objects is not None
    parent, following, edge = EDGES[name]
    assert link_between(Search(torch_objects), [parent, *following]) == edge


def test_labels_of_the_search_come_first() -> None:
    torch_objects = loaded()
    assert torch_objects is not None
    search = Search(torch_objects)
    assert link_between(search, [], "._saved_self") == Edge("saved", "_saved_self")
    assert link_between(search, [], ".grad_fn") == Edge("grad_fn", "grad_fn")
