"""Gradients of products, as a run takes them where no factor is zero.

Autograd's formulas ask whether one is, but not of tensors of a kind of their own, such as shapes':
those take a longer way (prod_backward and cumprod_backward in
torch/csrc/autograd/FunctionsManual.cpp; ``splat_views`` held five tensors more).
"""

from __future__ import annotations

import warnings
from typing import Any

_kept: list[Any] = []


def put_formulas() -> None:
    """Gives products on the card formulas of their own; for good."""
    import torch

    operators = torch.ops.aten
    below: Any = torch._C._AutoDispatchBelowAutograd

    class RunningProduct(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(tensor: Any, dim: int, dtype: Any) -> Any:
            with below():
                return operators.cumprod(tensor, dim, dtype=dtype)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(inputs[0], output)
            ctx.dim = inputs[1]

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            tensor, result = ctx.saved_tensors
            weighted = result * gradient
            _is_zero = tensor == 0  # unread: autograd's formula holds it until it returns
            turned = weighted.flip(ctx.dim)
            sums = turned.cumsum(ctx.dim)
            turned_back = sums.flip(ctx.dim)
            del turned, sums
            return turned_back.div(tensor).to(tensor.dtype), None, None

    class Product(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(tensor: Any, dim: int | None, dtype: Any) -> Any:
            with below():
                if dim is None:
                    return operators.prod(tensor, dtype=dtype)
                return operators.prod.dim_int(tensor, dim, True, dtype=dtype)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(inputs[0], output)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            tensor, result = ctx.saved_tensors
            return (gradient * (result / tensor)).to(tensor.dtype), None, None

    product: Any = Product
    running: Any = RunningProduct

    def product_of_dimension(
        tensor: Any, dim: int, keepdim: bool = False, *, dtype: Any = None
    ) -> Any:
        result = product.apply(tensor, dim, dtype)
        return result if keepdim or not tensor.dim() else result.squeeze(dim)

    library: Any = torch.library.Library("aten", "IMPL", "AutogradCUDA")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # autograd's own are there
        library.impl("cumprod", lambda x, dim, *, dtype=None: running.apply(x, dim, dtype))
        library.impl("prod", lambda tensor, *, dtype=None: product.apply(tensor, None, dtype))
        library.impl("prod.dim_int", product_of_dimension)
    _kept.append(library)
