"""Reductions over all numbers, rows, columns and the middle; running sums; softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Build = Callable[[Any], tuple[Any, ...]]

_SHAPES = {"rows": ((16384, 256), -1), "columns": ((16384, 256), 0), "middle": ((64, 256, 256), 1)}
_BY_DIM: dict[str, Callable[..., Any]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "amax": torch.amax,
    "max": torch.max,
    "argmax": torch.argmax,
    "prod": torch.prod,
    "var": torch.var,
    "std": torch.std,
    "var_mean": torch.var_mean,
    "norm": lambda x, dim: x.norm(dim=dim),
    "norm/p1": lambda x, dim: x.norm(p=1, dim=dim),
    "logsumexp": torch.logsumexp,
    "softmax": torch.softmax,
    "log_softmax": torch.log_softmax,
    "cumsum": torch.cumsum,
    "cumprod": torch.cumprod,
    "cummax": torch.cummax,
    "logcumsumexp": torch.logcumsumexp,
    "median": torch.median,
    "nansum": torch.nansum,
    "all": lambda x, dim: (x > 0).all(dim),
    "any": lambda x, dim: (x > 0).any(dim),
    "count": lambda x, dim: (x > 0).sum(dim),
    "min": torch.min,
    "aminmax": lambda x, dim: torch.aminmax(x, dim=dim),
    "diff": lambda x, dim: torch.diff(x, dim=dim),
    "softmin": lambda x, dim: torch.nn.functional.softmin(x, dim),
    "renorm": lambda x, dim: torch.renorm(x, 2, dim, 1.0),
}
_OF_ALL: dict[str, Callable[[Any], Any]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "max": torch.max,
    "min": torch.min,
    "argmax": torch.argmax,
    "prod": torch.prod,
    "var": torch.var,
    "std": torch.std,
    "std_mean": torch.std_mean,
    "norm": torch.norm,
    "norm/inf": lambda x: x.norm(p=float("inf")),
    "median": torch.median,
    "any": lambda x: (x > 1).any(),
    "count": lambda x: (x > 1).sum(),
    "isnan": lambda x: x.isnan().any(),
    "isfinite": lambda x: x.isfinite().all(),
    "nanmean": torch.nanmean,
    "softmax/all": lambda x: x.flatten().softmax(0),
    "logsumexp/all": lambda x: x.flatten().logsumexp(0),
    "cumsum/all": lambda x: x.flatten().cumsum(0),
    "dot": lambda x: torch.dot(x.flatten(), x.flatten()),
    "square_sum": lambda x: x.pow(2).sum(),
    "abs_mean": lambda x: x.abs().mean(),
    "vector_norm": torch.linalg.vector_norm,
    "matrix_norm": torch.linalg.matrix_norm,
    "trace": torch.trace,
    "sum/float32": lambda x: x.sum(dtype=torch.float32),
    "mean/float32": lambda x: x.mean(dtype=torch.float32),
}


def _by_dim(function: Callable[..., Any], place: str) -> Build:
    shape, dim = _SHAPES[place]
    return lambda t: (lambda x: function(x, dim=dim), t(*shape))


def _of_all(function: Callable[[Any], Any]) -> Build:
    return lambda t: (function, t(4096, 512))


def _distinct(name: str, place: str) -> str:
    return f"{name}_{place}" if "/" in name else f"{name}/{place}"


BOTH: dict[str, Build] = {
    **{
        _distinct(name, place): _by_dim(function, place)
        for name, function in _BY_DIM.items()
        for place in _SHAPES
    },
    **{_distinct(name, "all"): _of_all(function) for name, function in _OF_ALL.items()},
    "sum/image": lambda t: (lambda x: x.sum((2, 3)), t(16, 64, 64, 64)),
    "sum/channels": lambda t: (lambda x: x.sum((0, 2, 3)), t(16, 64, 64, 64)),
    "mean/image": lambda t: (lambda x: x.mean((2, 3)), t(16, 64, 64, 64)),
    "mean/channels_last": lambda t: (lambda x: x.mean((2, 3)), t.last(16, 64, 64, 64)),
    "sum/transposed": lambda t: (lambda x: x.t().sum(0), t(16384, 256)),
    "sum/few": lambda t: (lambda x: x.sum(0), t(4000000, 2)),
    "sum/wide": lambda t: (lambda x: x.sum(1), t(4, 1000000)),
    "softmax/attention": lambda t: (lambda x: x.softmax(-1), t(8, 8, 256, 512)),
    "softmax/classes": lambda t: (lambda x: x.softmax(1), t(8, 21, 128, 128)),
    "softmax/wide": lambda t: (lambda x: x.softmax(-1), t(128, 32000)),
    "log_softmax/wide": lambda t: (lambda x: x.log_softmax(-1), t(128, 32000)),
    "cov": lambda t: (torch.cov, t(512, 4096)),
    "corrcoef": lambda t: (torch.corrcoef, t(512, 4096)),
    "cumulative_trapezoid": lambda t: (torch.cumulative_trapezoid, t(4096, 512)),
    "trapezoid": lambda t: (torch.trapezoid, t(4096, 512)),
    "gradient": lambda t: (lambda x: torch.gradient(x, dim=0), t(4096, 512)),
}

SINGLE: dict[str, Build] = {
    "histogram": lambda t: (lambda x: torch.histc(x, 100, -3, 3), t.plain(4096, 512)),
    "mode": lambda t: (lambda x: x.mode(-1), t(4096, 256)),
    "sum/integers": lambda t: (torch.sum, t.whole(9, 4096, 512)),
    "sum/int32": lambda t: (torch.sum, t.whole(9, 4096, 512, dtype=torch.int32)),
    "mean/integers": lambda t: (lambda i: i.float().mean(), t.whole(9, 4096, 512)),
    "cumsum/masks": lambda t: (lambda m: m.cumsum(-1), t.mask(4096, 512)),
    "max/integers": lambda t: (torch.max, t.whole(9, 4096, 512)),
}
