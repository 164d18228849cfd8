"""What a collective asks of the allocator, and what it leaves in its tensors, without peers.

NCCL works in buffers of its own, outside the allocator, and in the tensors that it is given. It
asks for memory where a list of tensors has to lie in one piece: ``all_gather`` and ``alltoall``
never do where the result is one tensor (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:
``allgather`` and ``reduce_scatter`` call ``newLikeFlat``; ``_allgather_base`` and
``_reduce_scatter_base`` do not). It keeps tensors alive until ``wait`` instead of marking their
stream (TORCH_NCCL_AVOID_RECORD_STREAMS, on since PyTorch 2.8).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vramlens.prediction.requests.request_log import RequestLog
from vramlens.prediction.tensors.known_values import Values
from vramlens.prediction.tensors.operator_schema import Operator

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_BARRIER_BYTES = 4
"""ProcessGroupNCCL::barrier reduces one float."""


class Collectives:
    """The collectives of one predicted rank: each is over at once.

    Every rank is taken to hold what this one holds: a gather has copies of it, a reduction leaves
    it as it is.
    """

    def __init__(
        self, log: RequestLog, values: Values, run: Callable[[Any, Any, Any], Any]
    ) -> None:
        self._log, self._values, self._run = log, values, run

    def result(self, operator: Operator, args: Any) -> Any:
        """What an operator of ``c10d`` returns."""
        name = operator.name.removeprefix("c10d.")
        if name == "allgather_":
            self._gather_to_list(args[0], args[1])
        elif name == "_allgather_base_":
            self._gather_to_tensor(args[0], args[1])
        elif name == "reduce_scatter_":
            self._log_flat(args[0], args[1])
        elif name in ("gather_", "allgather_coalesced_"):
            self._copy_to_lists(args[0], args[1])
        elif name == "barrier" and args[0].device.type == "cuda":
            self._log.scratch(_BARRIER_BYTES)
        return self._returned(operator, args)

    def _gather_to_list(self, outputs: Any, inputs: Any) -> None:
        self._log_flat(inputs, outputs)
        self._copy_to_lists(outputs, inputs)

    def _log_flat(self, pieces: Any, lists: Any) -> None:
        """A list's tensors in one piece, for as long as the collective takes (newLikeFlat)."""
        for piece, tensors in zip(pieces, lists, strict=False):
            if piece.device.type == "cuda":
                self._log.scratch(piece.numel() * piece.element_size() * len(tensors))

    def _copy_to_lists(self, outputs: Any, inputs: Any) -> None:
        for tensors, source in zip(outputs, inputs, strict=False):
            for target in tensors:
                self._run(torch.ops.aten.copy_.default, (target, source), {})

    def _gather_to_tensor(self, output: Any, source: Any) -> None:
        content = self._values.of(source)
        if content is None or not self._values.is_worth(output):
            return
        copies = output.numel() // max(1, source.numel())
        gathered = content.flatten().repeat(copies).reshape(output.shape)
        if hasattr(output, "fake_device"):
            self._values.set(output, gathered)
        else:
            output.copy_(gathered)

    def _returned(self, operator: Operator, args: Any) -> Any:
        """A work that is done, after the tensors where the schema returns them."""
        import torch._C._distributed_c10d as distributed

        c10d: Any = distributed
        returns = operator.function._schema.returns
        if not returns:
            return None
        future: Any = torch.futures.Future()
        future.set_result(args[0])
        work = c10d._create_work_from_future(future).boxed()
        return work if len(returns) == 1 else (args[0], work)
