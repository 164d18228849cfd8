"""Who finds what, side by side on a part of the corpus: vramlens, the collector's objects,
PyTorch's cycle finder.

``benchmarks/leaks_corpus.py`` does the same with all of it; ``docs/leaks_corpus.md`` has that
table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from leaks.answers import Answers, Run
from leaks.corpus import programs
from leaks.harness import DETECTED, judge

pytest.importorskip("torch")
TOOLS = ("vramlens", "collector", "cycles")
# By program: whether each tool says that something grows; the last one is no leak.
FOUND = {
    "container_global_list": (True, True, False),
    "graph_rnn_hidden": (True, True, False),
    "cycle_hook_closure": (True, False, True),
    "container_shared_queue": (True, False, False),
    "none_deque_filling": (False, True, False),
}


@pytest.fixture(scope="module")
def answers() -> Iterator[Answers]:
    with Answers(Run(name, tool) for name in FOUND for tool in TOOLS) as answers:
        yield answers


def _report(answers: Answers, name: str, tool: str) -> dict[str, Any]:
    answer = answers.of(Run(name, tool))
    assert "error" not in answer, answer["error"]
    found: dict[str, Any] = answer["report"]
    return found


def test_who_finds_what(answers: Answers) -> None:
    said = {}
    for name in FOUND:
        ours, *others = (_report(answers, name, tool) for tool in TOOLS)
        is_leak = any(leak["verdict"] in DETECTED for leak in ours["leaks"])
        said[name] = (is_leak, *(bool(other["found"]) for other in others))
    table = [
        f"{name:30} " + "  ".join(f"{found!s:9}" for found in row) for name, row in said.items()
    ]
    print("\n".join([f"{'':30} " + "  ".join(f"{tool:9}" for tool in TOOLS), *table]))
    assert said == FOUND


def test_only_one_names_owner_line_and_bytes(answers: Answers) -> None:
    for name in FOUND:
        if programs()[name].leaks:
            assert judge(programs()[name], answers.of(Run(name))) == {}
            for tool in TOOLS[1:]:
                assert "line" not in _report(answers, name, tool)


def test_collector_names_a_global_list(answers: Answers) -> None:
    """What it is good at: tensors with a Python object, held by a module."""
    report = _report(answers, "container_global_list", "collector")
    assert report["found"]
    assert report["chain"] == ["__main__", "dict['DEBUG_MAPS']", "list", "Tensor"]
    assert report["bytes_per_step"] == pytest.approx(
        programs()["container_global_list"].leaks[0].bytes_per_step, rel=0.05
    )


def test_collector_misses_what_autograd_holds(answers: Answers) -> None:
    """Of an LSTM's past it sees the states, which have Python objects, and none of the gates;
    and no owner.
    """
    program = programs()["graph_rnn_hidden"]
    report = _report(answers, program.name, "collector")
    assert report["found"]
    assert report["bytes_per_step"] < program.leaks[0].bytes_per_step / 2
    assert report["chain"] == []


def test_collector_takes_a_bounded_deque_for_a_leak(answers: Answers) -> None:
    assert _report(answers, "none_deque_filling", "collector")["found"]
