"""Hooks of ours on all modules, and what a compiled module says of global hooks."""

from __future__ import annotations

from typing import Any

import pytest

from vramlens.capture.names.module_hooks import after_each_module, before_each_module

torch = pytest.importorskip("torch")


def _compiled() -> Any:
    return torch.compile(torch.nn.Linear(2, 2), backend=lambda graph, _inputs: graph.forward)


def test_a_compiled_module_does_not_warn_of_our_hooks() -> None:
    calls: list[str] = []
    handles = [
        before_each_module(lambda _module, _arguments: calls.append("before")),
        after_each_module(lambda _module, _arguments, _output: calls.append("after")),
    ]
    try:
        _compiled()(torch.ones(1, 2))  # any warning is an error, by pytest's settings
    finally:
        for handle in handles:
            handle.remove()
    assert {"before", "after"} == set(calls)


def test_it_warns_of_the_programs_own() -> None:
    ours = before_each_module(lambda _module, _arguments: None)
    modules = torch.nn.modules.module
    own = modules.register_module_forward_hook(lambda _module, _arguments, _output: None)
    try:
        with pytest.warns(UserWarning, match="there are global hooks"):
            _compiled()(torch.ones(1, 2))
    finally:
        own.remove()
        ours.remove()
