"""Agreement of ranks: over a CPU group with a time limit, so that no rank waits for one that
failed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from vramlens.errors import VramlensError

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

FINE, FAILED, BROKEN = 0, 1, 2
"""How an attempt went on a rank: fine, out of memory, any other error."""
_BUCKET_BYTES = 32 * 1024**2
OTHER_ERROR = "guard: another rank failed with a different error (not out of memory): see its log"


class PeerFailed(VramlensError):
    """Another rank failed with something else than out of memory, or did not answer in time."""


class Alone:
    """One process: there is nobody to agree with."""

    sharded = False
    kind = "single"

    def settle(self, status: int) -> int:
        """The worst of all ranks' attempts."""
        return status

    def least(self, number: int) -> int:
        """The least of all ranks' numbers."""
        return number

    def parts(self, wanted: int, _count: int) -> int:
        """Into how many parts all ranks split."""
        return wanted

    def make_room(self, _parameters: Sequence[torch.nn.Parameter]) -> None:
        """Takes the room that ``reduce`` needs: a failure in the middle of it would leave the
        others waiting.
        """

    def reduce(self, _parameters: Sequence[torch.nn.Parameter]) -> None:
        """Averages gradients over the ranks."""

    def share_buffers(self, _buffers: Sequence[torch.Tensor]) -> None:
        """Gives all ranks the buffers of the first."""

    def inside(self, model: Any) -> Any:
        """What the loss function is given instead of ``model``."""
        return model

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Around an attempt: no collective happens in it."""
        yield


class _Agreeing(Alone):
    """Ranks that agree on numbers over gloo, each of which waits so long for the others."""

    _hint = ""

    def __init__(self, timeout_s: float, ranks: Sequence[int] | None = None) -> None:
        self._timeout_s = timeout_s
        self._group = torch.distributed.new_group(
            ranks, timeout=timedelta(seconds=timeout_s), backend="gloo"
        )

    def _agreed(self, numbers: list[int], about: str, operation: Any) -> list[int]:
        answer = torch.tensor(numbers, dtype=torch.int64)
        self._collective(about, answer, operation)
        return [int(number) for number in answer.tolist()]

    def _collective(self, about: str, tensor: torch.Tensor, operation: Any) -> None:
        try:
            torch.distributed.all_reduce(tensor, op=operation, group=self._group)
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0][:200]
            raise PeerFailed(
                f"guard: a rank did not agree on {about} within {self._timeout_s:g} s"
                f" ({reason}){self._hint}; this rank stops"
            ) from None


class DataParallel(_Agreeing):
    """Ranks of ``DistributedDataParallel``.

    Attempts run on the module inside of it, so that no collective is in them: a rank that fails
    keeps nobody waiting. Then all agree on how it went, and only when all are fine one reduction
    averages the gradients, as ``DistributedDataParallel`` would have. That costs the overlap of the
    reduction with the backward.

    Args:
        timeout_s: how long a rank waits for the others' answer.
    """

    kind = "ddp"
    _hint = ": see the log of the rank that exited first"

    def __init__(self, model: Any, timeout_s: float) -> None:
        self._model, self._data_group = model, model.process_group
        ranks = torch.distributed.get_process_group_ranks(self._data_group)
        super().__init__(timeout_s, ranks)
        self._world = len(ranks)
        self._room: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}
        self._source = ranks[0]

    def settle(self, status: int) -> int:
        # The operation of ``least``, which a rank that fails in its rollback meets here.
        return -self._agreed([-status], "how the step went", torch.distributed.ReduceOp.MIN)[0]

    def least(self, number: int) -> int:
        operation = torch.distributed.ReduceOp.MIN
        answer = self._agreed([number], "the size of the parts", operation)[0]
        if answer == -BROKEN:  # of a rank that meets this in ``settle``
            raise PeerFailed(OTHER_ERROR)
        return answer

    def inside(self, model: Any) -> Any:
        return self._model.module if model is self._model else model

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        with self._model.no_sync():
            yield

    def make_room(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        for parameter in parameters:  # those that only other ranks use need a gradient here as well
            kind = parameter.dtype, parameter.device
            size = sum(p.numel() for p in parameters if (p.dtype, p.device) == kind)
            size = min(size, _BUCKET_BYTES // parameter.element_size())
            if kind not in self._room or self._room[kind].numel() < size:
                self._room[kind] = torch.empty(size, dtype=parameter.dtype, device=parameter.device)

    def reduce(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Averages gradients over the ranks; a parameter that only others used gets their
        average, as in PyTorch.
        """
        has_gradient = torch.tensor(
            [parameter.grad is not None for parameter in parameters], dtype=torch.uint8
        )
        self._collective("which gradients exist", has_gradient, torch.distributed.ReduceOp.MAX)
        gradients = []
        for parameter, used in zip(parameters, has_gradient.tolist(), strict=True):
            if used:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        for bucket in _buckets(gradients):
            self._average(bucket)

    def _average(self, gradients: Sequence[torch.Tensor]) -> None:
        if len(gradients) == 1:
            torch.distributed.all_reduce(gradients[0].div_(self._world), group=self._data_group)
            return
        sizes = [gradient.numel() for gradient in gradients]
        flat = self._room[gradients[0].dtype, gradients[0].device][: sum(sizes)]
        parts = [
            part.view_as(gradient)
            for part, gradient in zip(torch.split(flat, sizes), gradients, strict=True)
        ]
        for gradient, part in zip(gradients, parts, strict=True):
            part.copy_(gradient)
        torch.distributed.all_reduce(flat.div_(self._world), group=self._data_group)
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part)

    def share_buffers(self, buffers: Sequence[torch.Tensor]) -> None:
        if not self._model.broadcast_buffers or not buffers:
            return
        if self.settle(FINE) == BROKEN:  # a rank whose optimizer failed says so here
            raise PeerFailed(OTHER_ERROR)
        for buffer in buffers:
            torch.distributed.broadcast(buffer, self._source, group=self._data_group)


class Sharded(_Agreeing):
    """Ranks that share one model (FSDP, tensor or pipeline parallel, SyncBatchNorm): collectives
    lie inside the step.

    A step is never recovered in the middle: the ranks agree before each batch into how many parts
        to split it.
    """

    sharded = True
    kind = "sharded"

    def least(self, number: int) -> int:
        return -self._agreed([-number], "the split", torch.distributed.ReduceOp.MAX)[0]

    def parts(self, wanted: int, count: int) -> int:
        parts, negative_count = self._agreed(
            [wanted, -count], "the split", torch.distributed.ReduceOp.MAX
        )
        return max(1, min(parts, -negative_count))


def ranks_of(model: Any, timeout_s: float) -> Alone:
    """How the ranks of this job work together on a model; a call that all ranks make."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return Alone()
    if torch.distributed.get_world_size() == 1:
        return Alone()
    if is_sharded(model):
        return Sharded(timeout_s)
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return DataParallel(model, timeout_s)
    return Alone()


def is_sharded(model: torch.nn.Module) -> bool:
    """Whether a forward has collectives in it: parameters are spread over ranks, or batch norms
    are shared.
    """
    if any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):
        return True
    names = {type(module).__name__ for module in model.modules()}
    return bool(names & {"FullyShardedDataParallel", "PipelineStage", "SyncBatchNorm"})


def _buckets(gradients: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Gradients of one type and device together, up to 32 MiB."""
    bucket: list[torch.Tensor] = []
    size = 0
    for gradient in gradients:
        is_alike = bucket and (bucket[0].dtype, bucket[0].device) == (
            gradient.dtype,
            gradient.device,
        )
        more = gradient.numel() * gradient.element_size()
        if bucket and (not is_alike or size + more > _BUCKET_BYTES):
            yield bucket
            bucket, size = [], 0
        bucket.append(gradient)
        size += more
    if bucket:
        yield bucket
