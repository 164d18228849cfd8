"""``torch.compile`` and CUDA graphs: what a program asks for without them, and that it was so.

torch.compile: kernels that are fused make fewer results, so that eager is what it seldom exceeds
(``tensors/fused_results.py``; by 14% in one of the measured programs); its own pool of CUDA graphs
(mode="reduce-overhead") comes on top.
CUDA graphs: what is asked for while a graph is captured comes from a pool of its own, which
nobody else gets, and which empty_cache leaves alone (c10/cuda/CUDACachingAllocator.cpp,
beginAllocateToPool).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from vramlens.prediction.requests.request_log import FIRST_POOL, RequestLog

if TYPE_CHECKING:
    from vramlens.prediction.tensors.shapes import OperatorRunner

COMPILED = "torch.compile: predicted as eager; compiled code mostly needs less, at times more"


def put_eager(runner: OperatorRunner) -> None:
    """Makes compiled functions run as they are, and graphs run while they are captured."""
    import torch  # the module itself: it is changed

    def compile_nothing(model: Any = None, *args: Any, **options: Any) -> Any:
        runner.notes[COMPILED] = None
        runner.note_basis("torch.compile, predicted as eager: what it fuses may never be made")
        if model is None:
            return lambda function: compile_nothing(function, *args, **options)
        if not isinstance(model, torch.nn.Module):
            return _as_compiled(runner, model)
        object.__setattr__(model, "_orig_mod", model)
        model.register_forward_pre_hook(lambda module, inputs: runner.fused.begin())
        model.register_forward_hook(
            lambda module, inputs, result: runner.fused.end(_tensors_of(result)), always_call=True
        )
        return model

    torch.compile = compile_nothing
    torch.compiler.compile = compile_nothing
    _put_graphs(runner)


def _as_compiled(runner: OperatorRunner, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that runs as it is, with its results noted as those of a compiled one."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        result = None
        runner.fused.begin()
        try:
            result = function(*args, **options)
        finally:
            runner.fused.end(_tensors_of(result))
        return result

    return run


def _tensors_of(result: Any) -> list[Any]:
    """The tensors that a function returns, in containers, too."""
    import torch
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _put_graphs(runner: OperatorRunner) -> None:
    import torch  # the module itself: it is changed

    pools: list[int] = []

    def new_pool() -> int:
        pools.append(FIRST_POOL + len(pools))
        return pools[-1]

    class PredictedGraph(_Graph):
        """A graph of this program's."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(runner.log, new_pool())

    for module in (torch.cuda, torch.cuda.graphs):
        module.CUDAGraph = PredictedGraph  # type: ignore[attr-defined]
        module.graph = _capture  # type: ignore[attr-defined]
        module.graph_pool_handle = new_pool  # type: ignore[attr-defined]
    torch.cuda.make_graphed_callables = lambda callables, *args, **options: callables


class _Graph:
    """A graph whose work was done while it was captured."""

    def __init__(self, log: RequestLog, pool: int) -> None:
        self._log, self._pool = log, pool
        self._before = 0

    def capture_begin(self, pool: Any = None, *args: Any, **options: Any) -> None:
        self._pool = self._pool if pool is None else pool
        self._before, self._log.stream = self._log.stream, self._pool

    def capture_end(self) -> None:
        self._log.stream = self._before

    def replay(self) -> None:
        """Everything is where it was."""

    def reset(self) -> None:
        """Its tensors go with their names."""

    def pool(self) -> int:
        return self._pool


@contextlib.contextmanager
def _capture(graph: _Graph, pool: Any = None, *args: Any, **options: Any) -> Iterator[None]:
    import torch

    torch.cuda.empty_cache()  # as PyTorch does there
    graph.capture_begin(pool)
    try:
        yield
    finally:
        graph.capture_end()
