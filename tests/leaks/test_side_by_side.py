"""What the collector's objects and PyTorch's cycle finder find on the same programs, so that the comparison is fair."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leaks.corpus import programs
from leaks.harness import Nursery

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


def test_collector_names_a_global_list(nursery: Nursery) -> None:
    """What it is good at: tensors with a Python object, held by a module."""
    report = nursery.run(programs()["container_global_list"], "collector")["report"]
    assert report["found"]
    assert report["chain"] == ["__main__", "dict['DEBUG_MAPS']", "list", "Tensor"]
    assert report["bytes_per_step"] == pytest.approx(
        programs()["container_global_list"].leaks[0].bytes_per_step, rel=0.05
    )


def test_collector_misses_what_autograd_holds(nursery: Nursery) -> None:
    """Of an LSTM's past it sees the states, which have Python objects, and none of the gates; and no owner."""
    program = programs()["graph_rnn_hidden"]
    report = nursery.run(program, "collector")["report"]
    assert report["found"]
    assert report["bytes_per_step"] < program.leaks[0].bytes_per_step / 2
    assert report["chain"] == []


def test_collector_takes_a_bounded_deque_for_a_leak(nursery: Nursery) -> None:
    assert nursery.run(programs()["none_deque_filling"], "collector")["report"]["found"]


def test_cycle_finder_finds_cycles_only(nursery: Nursery) -> None:
    found = {
        name: nursery.run(programs()[name], "cycles")["report"]["found"]
        for name in ("cycle_hook_closure", "container_global_list", "graph_rnn_hidden")
    }
    assert found == {"cycle_hook_closure": True, "container_global_list": False, "graph_rnn_hidden": False}
