"""Functions of each number, arithmetic with broadcasting and types, conversions, random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

Build = Callable[[Any], tuple[Any, ...]]

_SHAPE = (4096, 512)
_OF_ONE: dict[str, Callable[[Any], Any]] = {
    **{
        name: getattr(F, name)
        for name in (
            "relu", "relu6", "elu", "celu", "selu", "leaky_relu", "gelu", "silu", "mish", "softplus",
            "softsign", "hardtanh", "hardswish", "hardsigmoid", "hardshrink", "softshrink",
            "tanhshrink", "logsigmoid", "glu", "rrelu",
        )
    },
    **{
        name: getattr(torch, name)
        for name in (
            "exp", "exp2", "expm1", "sigmoid", "tanh", "sin", "cos", "tan", "atan", "sinh", "cosh",
            "asinh", "abs", "neg", "sign", "square", "erf", "erfc", "sinc", "floor", "round", "ceil",
            "trunc", "frac", "positive", "sgn", "deg2rad", "nan_to_num", "isfinite", "isinf", "isnan",
            "signbit", "logical_not", "i0", "clone", "zeros_like", "ones_like", "rand_like",
            "randn_like", "empty_like",
        )
    },
    **{
        f"special_{name}": getattr(torch.special, name)
        for name in ("erfcx", "ndtr", "log_ndtr", "entr", "i0e", "i1", "bessel_j0", "expit")
    },
    "gelu/tanh": lambda x: F.gelu(x, approximate="tanh"),
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp/least": lambda x: x.clamp(min=0),
    "pow/2": lambda x: x**2,
    "pow/3": lambda x: x.pow(3),
    "pow/exponent": lambda x: 2**x,
    "add/number": lambda x: x + 1,
    "mul/number": lambda x: x * 0.5,
    "rsub/number": lambda x: 1 - x,
    "div/number": lambda x: x / 3,
    "rdiv/number": lambda x: 1 / (x.abs() + 1),
    "remainder": lambda x: x % 2,
    "floor_divide": lambda x: x.detach() // 2,
    "compare": lambda x: x > 0,
    "compare/float": lambda x: (x > 0).float(),
    "to/float32": lambda x: x.float(),
    "to/half": lambda x: x.half(),
    "to/bfloat16": lambda x: x.bfloat16(),
    "to/double": lambda x: x.double(),
    "to/long": lambda x: x.long(),
    "to/bool": lambda x: x.bool(),
    "to/cpu": lambda x: x.cpu(),
    "silu_gate": lambda x: F.silu(x[:, :256]) * x[:, 256:],
    "chain": lambda x: (x * 2 + 1).tanh().exp().mean(),
    "rotate_half": lambda x: torch.cat((-x[..., 256:], x[..., :256]), -1) * x,
    "standardized": lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True),
    "rms_by_hand": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "rms_in_float32": lambda x: (
        x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    ).to(x.dtype),
    "gelu_by_hand": lambda x: 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3))),
    "checkpoint": lambda x: torch.utils.checkpoint.checkpoint(
        lambda y: (y.tanh().exp() * 2).sigmoid(), x, use_reentrant=False
    ),
    "checkpoint/reentrant": lambda x: torch.utils.checkpoint.checkpoint(
        lambda y: (y.tanh().exp() * 2).sigmoid(), x, use_reentrant=True
    ),
    "relu_": lambda x: F.relu(x * 2, inplace=True),
    "add_": lambda x: (x * 2).add_(1).mul_(3),
    "clamp_": lambda x: (x * 2).clamp_(0, 1),
    "masked_fill_": lambda x: (x * 2).masked_fill_(x > 0, 0.0),
    "copy_": lambda x: torch.empty_like(x).copy_(x),
    "normal_": lambda x: torch.empty_like(x).normal_(),
    "uniform_": lambda x: torch.empty_like(x).uniform_(),
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(0.5),
    "exponential_": lambda x: torch.empty_like(x).exponential_(),
    "detach": lambda x: x.detach() * 2 + x,
    "stop_gradient": lambda x: (x.round() - x).detach() + x,
    "item": lambda x: x * x.mean().item(),
    "view_as_complex": lambda x: torch.view_as_complex(x.float().view(4096, 256, 2)).abs(),
    "complex_product": lambda x: torch.view_as_real(
        torch.view_as_complex(x.float().view(4096, 256, 2))
        * torch.polar(torch.ones(256, device=x.device), torch.arange(256.0, device=x.device))
    ),
}  # fmt: skip
_ABOVE_ZERO = (
    "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "logit", "asin", "acos", "atanh",
    "erfinv", "lgamma", "digamma", "bernoulli",
)  # fmt: skip
_OF_TWO: dict[str, Callable[[Any, Any], Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "pow": lambda x, y: x.abs().pow(y),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "logaddexp": torch.logaddexp,
    "xlogy": lambda x, y: torch.xlogy(x, y.abs() + 0.1),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "lerp_tensor": lambda x, y: torch.lerp(x, y, y),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y.abs() + 1, value=0.5),
    "eq": torch.eq,
    "copysign": torch.copysign,
    "heaviside": lambda x, y: torch.heaviside(x.detach(), y.detach()),
    "ldexp": lambda x, y: torch.ldexp(x, y.round()),
    "dist": torch.dist,
    "squared_difference": lambda x, y: ((x - y) ** 2).mean(),
    "isclose": torch.isclose,
    "complex": lambda x, y: torch.complex(x.float(), y.float()).abs(),
    "polar": lambda x, y: torch.polar(x.float(), y.float()).angle(),
}
_BROADCASTS = {
    "row": ((4096, 512), (512,)),
    "column": ((4096, 512), (4096, 1)),
    "no_dimension": ((4096, 512), ()),
    "outer": ((4096, 1), (1, 512)),
    "image": ((16, 64, 64, 64), (1, 64, 1, 1)),
}


def _unary(function: Callable[[Any], Any]) -> Build:
    return lambda t: (function, t(*_SHAPE))


def _of_unit(name: str) -> Build:
    return lambda t: (getattr(torch, name), t.unit(*_SHAPE))


def _binary(function: Callable[[Any, Any], Any]) -> Build:
    return lambda t: (function, t(*_SHAPE), t(*_SHAPE))


def _broadcast(function: Callable[[Any, Any], Any], place: str) -> Build:
    left, right = _BROADCASTS[place]
    return lambda t: (function, t(*left), t(*right))


def _autocast(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Build:
    """A function of float32 tensors under autocast."""

    def build(t: Any) -> tuple[Any, ...]:
        dtype = t.dtype if t.dtype is not torch.float32 else torch.float16

        def run(*tensors: Any) -> Any:
            with torch.autocast(t.device, dtype):
                return function(*tensors)

        return run, *(t(*shape, dtype=torch.float32) for shape in shapes)

    return build


BOTH: dict[str, Build] = {
    **{name: _unary(function) for name, function in _OF_ONE.items()},
    **{name: _of_unit(name) for name in _ABOVE_ZERO},
    **{name: _binary(function) for name, function in _OF_TWO.items()},
    **{
        f"{name}/{place}": _broadcast(getattr(torch, name), place)
        for name in ("add", "mul", "div")
        for place in _BROADCASTS
    },
    "prelu": lambda t: (F.prelu, t(16, 64, 64, 64), t(64)),
    "prelu/one": lambda t: (F.prelu, t(16, 64, 64, 64), t(1)),
    "add/float32": lambda t: (torch.add, t(*_SHAPE), t(*_SHAPE, dtype=torch.float32)),
    "mul/mask": lambda t: (torch.mul, t(*_SHAPE), t.mask(*_SHAPE)),
    "mul/integers": lambda t: (torch.mul, t(*_SHAPE), t.whole(9, *_SHAPE)),
    "add/transposed": lambda t: (lambda x, y: x + y.t(), t(2048, 2048), t(2048, 2048)),
    "normal": lambda t: (lambda: torch.randn(*_SHAPE, device=t.device, dtype=t.dtype),),
    "zeros": lambda t: (lambda: torch.zeros(*_SHAPE, device=t.device, dtype=t.dtype),),
    "full": lambda t: (lambda: torch.full(_SHAPE, 3.0, device=t.device, dtype=t.dtype),),
    "arange": lambda t: (lambda: torch.arange(1000000, device=t.device, dtype=t.dtype),),
    "linspace": lambda t: (lambda: torch.linspace(0, 1, 1000000, device=t.device, dtype=t.dtype),),
    "eye": lambda t: (lambda: torch.eye(1024, device=t.device, dtype=t.dtype),),
    "swiglu": lambda t: (
        lambda x, g, u, d: F.linear(F.silu(F.linear(x, g)) * F.linear(x, u), d),
        t(4096, 512), t(1024, 512), t(1024, 512), t(512, 1024),
    ),
    "residual": lambda t: (
        lambda x, w, b: x + F.linear(F.layer_norm(x, (512,)), w, b), t(4096, 512), t(512, 512), t(512),
    ),
}  # fmt: skip

HALF: dict[str, Build] = {
    "autocast/linear": _autocast(F.linear, (4096, 512), (1024, 512), (1024,)),
    "autocast/matmul": _autocast(torch.matmul, (4096, 512), (512, 512)),
    "autocast/softmax": _autocast(lambda x, w: (x @ w).softmax(-1), (4096, 512), (512, 512)),
    "autocast/layer_norm": _autocast(
        lambda x, w, b: F.layer_norm(F.linear(x, w), (512,), b), (4096, 512), (512, 512), (512,)
    ),
    "autocast/conv2d": _autocast(
        lambda x, w: F.relu(F.conv2d(x, w, padding=1)), (8, 64, 56, 56), (64, 64, 3, 3)
    ),
    "autocast/loss": _autocast(lambda x, w: F.mse_loss(F.linear(x, w), x), (4096, 512), (512, 512)),
    "autocast/attention": _autocast(
        lambda x: F.scaled_dot_product_attention(x, x, x), (8, 8, 512, 64)
    ),
    "autocast/einsum": _autocast(
        lambda x, y: torch.einsum("bid,bjd->bij", x, y), (8, 512, 64), (8, 512, 64)
    ),
    "autocast/sum": _autocast(lambda x, w: (x @ w).pow(2).sum(), (4096, 512), (512, 512)),
}
