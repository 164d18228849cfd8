"""What a case is, and the tensors that it is made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True)
class Case:
    """One call of an operator.

    Attributes:
        name: the operator, a slash and the variant.
        dtype: a name of ``DTYPES``: of the tensors whose type the case leaves open.
        build: makes of ``Tensors`` the function to call, and its arguments.
    """

    name: str
    dtype: str
    build: Callable[[Tensors], tuple[Any, ...]]

    @property
    def key(self) -> str:
        """What its figures are filed under."""
        return f"{self.name} {self.dtype}"

    @property
    def operator(self) -> str:
        """The operator's name alone."""
        return self.name.partition("/")[0]


class Tensors:
    """Makes a case's tensors; a call gives normal numbers with a gradient.

    Integers and masks are made on the CPU and moved, so that their values are the same on every
    device, and known to a prediction.
    """

    def __init__(self, device: str, dtype: str) -> None:
        self.device, self.dtype = device, DTYPES[dtype]
        self._draws = torch.Generator().manual_seed(0)

    def __call__(self, *shape: int, dtype: Any = None) -> Any:
        """Normal numbers with a gradient."""
        return self.plain(*shape, dtype=dtype).requires_grad_()

    def plain(self, *shape: int, dtype: Any = None) -> Any:
        """Normal numbers without a gradient."""
        return torch.randn(shape, device=self.device, dtype=dtype or self.dtype)

    def unit(self, *shape: int, dtype: Any = None) -> Any:
        """Numbers between 0.05 and 0.95, with a gradient."""
        numbers = torch.rand(shape, device=self.device, dtype=dtype or self.dtype)
        return numbers.mul_(0.9).add_(0.05).requires_grad_()

    def whole(self, high: int, *shape: int, dtype: Any = torch.int64) -> Any:
        """Integers from 0 to below ``high``."""
        numbers = torch.randint(0, high, shape, generator=self._draws, dtype=torch.int64)
        return numbers.to(dtype).to(self.device)

    def mask(self, *shape: int, share: float = 0.5) -> Any:
        """Booleans of which a share holds."""
        return (torch.rand(shape, generator=self._draws) < share).to(self.device)

    def numbers(self, values: Any, dtype: Any = torch.int64) -> Any:
        """A tensor of given numbers."""
        return torch.tensor(values, dtype=dtype).to(self.device)

    def order(self, count: int) -> Any:
        """The numbers below ``count``, shuffled."""
        return torch.randperm(count, generator=self._draws).to(self.device)

    def positive(self, *shape: int, dtype: Any = None) -> Any:
        """Symmetric positive definite matrices with a gradient."""
        dtype = dtype or self.dtype
        rows = torch.rand(*shape, device=self.device)
        matrix = rows @ rows.mT / shape[-1] + torch.eye(shape[-1], device=self.device)
        return matrix.to(dtype).detach().requires_grad_()

    def regular(self, *shape: int, dtype: Any = None) -> Any:
        """Square matrices far from singular, with a gradient."""
        noise = torch.rand(*shape, device=self.device) / math.sqrt(shape[-1])
        matrix = noise + 2 * torch.eye(shape[-1], device=self.device)
        return matrix.to(dtype or self.dtype).detach().requires_grad_()

    def last(self, *shape: int) -> Any:
        """Normal numbers with channels last, and a gradient."""
        form = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        return self.plain(*shape).to(memory_format=form).requires_grad_()

    def module(self, module: Any, keeps_dtype: bool = False) -> Any:
        """A module on the device, in the case's type."""
        return module.to(self.device) if keeps_dtype else module.to(self.device, self.dtype)
