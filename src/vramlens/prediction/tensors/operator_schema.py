"""What an operator's schema says of it, looked up once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_MADE_OF_OTHERS = frozenset(
    {
        "_euclidean_dist", "_safe_softmax", "_unsafe_masked_index",
        "_unsafe_masked_index_put_accumulate", "affine_grid_generator", "allclose",
        "binary_cross_entropy_with_logits", "block_diag", "cholesky_solve", "dist",
        "isinf", "ldexp", "linalg_lstsq", "linalg_pinv", "logcumsumexp", "logsumexp",
        "masked_scatter", "masked_scatter_backward", "mvlgamma", "norm", "rot90",
        "soft_margin_loss", "soft_margin_loss_backward",
    }
)  # fmt: skip
"""Operators with a formula of their own for autograd, and one kernel for all devices that calls
other operators (CompositeExplicitAutograd in native_functions.yaml): they hold temporaries.
"""


ABSORBING = {
    "aten.bitwise_or": True, "aten.logical_or": True,
    "aten.bitwise_and": False, "aten.logical_and": False,
}  # fmt: skip
"""Operators on booleans, with the value of one side that decides the result alone."""
UNABLE = (RuntimeError, NotImplementedError, TypeError, IndexError)
"""What an operator raises on the CPU for values that it does not take there."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One overload of PyTorch's.

    Attributes:
        function: to call.
        name: as ``aten.mm``, without its overload.
        written: the places of the arguments that it changes.
        out_names: the names of those that it only writes, such as out.
        is_view: whether its results share their argument's storage.
        is_random: whether its values are drawn.
        is_composite: whether PyTorch makes it of other operators; one that devices have kernels for
            is none (silu_backward).
        parts_key: of its one kernel for all devices, where that makes tensors by other operators.
        keeps_arguments: whether it is PyTorch's own, and leaves its arguments' shapes and storages.
    """

    function: Any
    name: str
    written: tuple[int, ...]
    out_names: tuple[str, ...]
    is_view: bool
    is_random: bool
    is_composite: bool
    parts_key: Any | None
    keeps_arguments: bool

    def run_decomposed(self, args: Any, kwargs: Any) -> Any:
        """What a composite operator returns; the operators that it calls are dispatched."""
        key = torch._C.DispatchKey.CompositeImplicitAutograd
        return self.function._op_dk(key, *args, **kwargs)

    def run_in_parts(self, args: Any, kwargs: Any) -> Any:
        """What the kernel for all devices returns; the operators that it calls are dispatched."""
        return self.function._op_dk(self.parts_key, *args, **kwargs)


@cache
def operator_of(function: Any) -> Operator:
    """What is known of an overload."""
    schema = function._schema
    name = f"{function.namespace}.{function.overloadpacket.__name__}"
    written = tuple(
        place
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    has_kernel = partial(torch._C._dispatch_has_kernel_for_dispatch_key, function.name())
    return Operator(
        function=function,
        name=name,
        written=written,
        out_names=_out_names(schema),
        is_view=bool(getattr(function, "is_view", False)),
        is_random=torch.Tag.nondeterministic_seeded in function.tags,
        is_composite=has_kernel("CompositeImplicitAutograd")
        and not (has_kernel("CPU") or has_kernel("CUDA")),
        parts_key=_parts_key(function, has_kernel),
        keeps_arguments=_keeps_arguments(function),
    )


def _parts_key(function: Any, has_kernel: Callable[[str], bool]) -> Any | None:
    if function.namespace != "aten" or function.overloadpacket.__name__ not in _MADE_OF_OTHERS:
        return None
    keys = "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"
    return next((getattr(torch._C.DispatchKey, key) for key in keys if has_kernel(key)), None)


def _out_names(schema: Any) -> tuple[str, ...]:
    return tuple(argument.name for argument in schema.arguments if argument.is_out)


def _keeps_arguments(function: Any) -> bool:
    return function.namespace == "aten" and torch.Tag.inplace_view not in function.tags


def tensors_in(args: Any, kwargs: Any) -> list[Any]:
    """The tensors among an operator's arguments or results, in order, also those in lists."""
    collected: list[Any] = []
    for argument in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(argument, torch.Tensor):
            collected.append(argument)
        elif isinstance(argument, (list, tuple)):
            collected.extend(tensors_in(argument, {}))
    return collected
