"""Results of operators that PyTorch has no shapes for: made once by the CPU's kernel, of known
values and zeros, such as the losses of aligned sequences and draws from a Dirichlet distribution.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from vramlens.prediction.tensors.known_values import KnownValues
from vramlens.prediction.tensors.operator_schema import Operator

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_MOST_BYTES = 256 << 20
"""Of all inputs together: a larger program is refused, as nothing else tells the shapes."""


def host_results(operator: Operator, args: Any, kwargs: Any, values: KnownValues) -> Any:
    """What an operator returns on the CPU for inputs of these shapes.

    Raises:
        NotImplementedError: they are too large, or the CPU has no such operator.
    """
    from torch.utils._pytree import tree_leaves, tree_map_only

    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    if sum(leaf.numel() * leaf.element_size() for leaf in leaves) > _MOST_BYTES:
        raise NotImplementedError(f"the shapes that {operator.name} returns are not known")

    def on_host(tensor: Any) -> Any:
        content = values.of(tensor)
        return torch.zeros(tensor.shape, dtype=tensor.dtype) if content is None else content

    args, kwargs = tree_map_only(torch.Tensor, on_host, (args, kwargs))
    if kwargs.get("device") is not None:
        kwargs["device"] = torch.device("cpu")
    halves = {leaf.dtype for leaf in leaves} & {torch.float16, torch.bfloat16}
    for half in (None, *halves):  # kernels for the CPU may have no 16 bits
        call = tree_map_only(torch.Tensor, partial(_wide, half), (args, kwargs))
        try:
            results = operator.function(*call[0], **call[1])
        except NotImplementedError:
            continue
        return tree_map_only(torch.Tensor, partial(_narrow, half), results)
    raise NotImplementedError(f"the shapes that {operator.name} returns are not known")


def _wide(half: Any, tensor: Any) -> Any:
    return tensor.float() if half is not None and tensor.dtype is half else tensor


def _narrow(half: Any, tensor: Any) -> Any:
    return tensor.to(half) if half is not None and tensor.dtype is torch.float32 else tensor
