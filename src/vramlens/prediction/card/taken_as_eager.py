"""``torch.compile`` and CUDA graphs: what a program asks for without them, and that it was so.

torch.compile: kernels that are fused make fewer results, so that eager is what it seldom exceeds;
its own pool of CUDA graphs (mode="reduce-overhead") comes on top.
CUDA graphs: what is asked for while a graph is captured comes from a pool of its own, which
nobody else gets (c10/cuda/CUDACachingAllocator.cpp, beginAllocateToPool): as from a stream of
its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from vramlens.prediction.tensors.shapes import Runner
else:
    from vramlens.ground.late_torch import torch

COMPILED = "torch.compile: predicted as eager; what its kernels fuse needs less"
GRAPHS = "CUDA graphs: their pools are predicted as streams of their own"
_FIRST_POOL = 1 << 20
"""Numbers of pools, beyond those of streams."""


def put_eager(runner: Runner) -> None:
    """Makes compiled functions run as they are, and graphs run while they are captured."""
    import torch  # the module itself: it is changed

    def compile_nothing(model: Any = None, *args: Any, **options: Any) -> Any:
        runner.notes[COMPILED] = None
        if model is None:
            return lambda function: function
        if isinstance(model, torch.nn.Module):
            object.__setattr__(model, "_orig_mod", model)
        return model

    torch.compile = compile_nothing  # type: ignore[assignment]
    torch.compiler.compile = compile_nothing  # type: ignore[assignment]
    _put_graphs(runner)


def _put_graphs(runner: Runner) -> None:
    pools: list[int] = []

    def new_pool() -> int:
        runner.notes[GRAPHS] = None
        pools.append(_FIRST_POOL + len(pools))
        return pools[-1]

    class CUDAGraph:
        """A graph whose work was done while it was captured."""

        def __init__(self, *args: Any, **options: Any) -> None:
            self._pool = new_pool()
            self._before = 0

        def capture_begin(self, pool: Any = None, *args: Any, **options: Any) -> None:
            self._pool = self._pool if pool is None else pool
            self._before, runner.log.stream = runner.log.stream, self._pool

        def capture_end(self) -> None:
            runner.log.stream = self._before

        def replay(self) -> None:
            """Everything is where it was."""

        def reset(self) -> None:
            """Its tensors go with their names."""

        def pool(self) -> int:
            return self._pool

    @contextlib.contextmanager
    def graph(
        cuda_graph: CUDAGraph, pool: Any = None, *args: Any, **options: Any
    ) -> Iterator[None]:
        cuda_graph.capture_begin(pool)
        try:
            yield
        finally:
            cuda_graph.capture_end()

    for module in (torch.cuda, torch.cuda.graphs):
        for name, stand_in in (
            ("CUDAGraph", CUDAGraph),
            ("graph", graph),
            ("graph_pool_handle", new_pool),
        ):
            setattr(module, name, stand_in)
    torch.cuda.make_graphed_callables = lambda callables, *args, **options: callables
