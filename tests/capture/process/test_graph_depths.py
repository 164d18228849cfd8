"""A program that lets go of a deep autograd graph lives on, after a search as without one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.installed import PYTHON_PATH

torch = pytest.importorskip("torch")

from vramlens.capture.process.graph_depths import DEEPEST, DEEPEST_OF_MANY, GraphDepths  # noqa: E402

_PROGRAM = """
import sys
sys.path.insert(0, {path!r})
import torch
from vramlens.live.watch import LeakWatch

watch = LeakWatch()
state = torch.ones(4, requires_grad=True)
kept = {{}}
for step in range(40):
    for _ in range(2500):
        state = state * 1.0001
    {keep}
    watch.step()
report = watch.report()
print(len(report.leaks))
kept.clear()
del state
print("freed")
"""


@pytest.mark.parametrize("keep", ["pass", "kept[step] = state", "kept[step] = state.grad_fn"])
def test_a_chain_of_100_000_nodes_is_freed_after_a_search(keep: str) -> None:
    code = _PROGRAM.format(path=PYTHON_PATH, keep=keep)
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-500:]
    assert ended.stdout.endswith("freed\n")


class _Torch:
    __version__ = "2.13.0+cpu"


class _Former:
    __version__ = "2.12.1"


def test_only_where_nodes_keep_their_objects_is_there_a_limit() -> None:
    assert GraphDepths(_Former, lambda: DEEPEST_OF_MANY).has_room(1 << 30)
    brief = GraphDepths(_Torch, lambda: DEEPEST_OF_MANY)
    assert brief.has_room(499)
    assert not brief.has_room(500)


def test_the_longest_way_counts() -> None:
    depths = GraphDepths(_Torch)
    node = object()
    assert depths.depth_of(node) == 0
    depths.is_below(node, 7)
    depths.is_below(node, 3)
    assert depths.depth_of(node) == 7


_GUARDED = """
import sys
sys.path.insert(0, {path!r})
import torch
from vramlens.recovery.losses.loss_graph import operations_of

state = torch.ones(4, requires_grad=True)
for _ in range(100_000):
    state = state * 1.0001
loss = state.exp().sum()
print(sorted(operations_of(loss)))
del state, loss
print("freed")
"""


def test_the_guard_looks_at_the_newest_of_a_chain() -> None:
    code = _GUARDED.format(path=PYTHON_PATH)
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-500:]
    assert ended.stdout.splitlines() == [
        "['ExpBackward0', 'MulBackward0', 'SumBackward0']",
        "freed",
    ]


def test_a_wide_graph_is_looked_at_as_a_whole() -> None:
    from vramlens.recovery.losses.loss_graph import operations_of

    weight = torch.ones(1, requires_grad=True)
    parts = [(weight * 2).sin() for _ in range(DEEPEST)]
    names = operations_of(torch.stack([weight.exp(), *parts]).sum())
    assert {"ExpBackward0", "SinBackward0"} <= names
