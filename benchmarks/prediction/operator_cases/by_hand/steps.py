"""What programs do around operators: second derivatives, functional transforms, distributions, hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import distributions, nn

Build = Callable[[Any], tuple[Any, ...]]


def _network(t: Any) -> Any:
    return t.module(nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 256)))


def _penalty(t: Any) -> tuple[Any, ...]:
    def run(x: Any, network: Any) -> Any:
        (gradient,) = torch.autograd.grad(network(x).sum(), x, create_graph=True)
        return (gradient.norm(dim=1) - 1).pow(2).mean()

    return (
        lambda x, network: run(x, network) if torch.is_grad_enabled() else network(x),
        t(4096, 256),
        _network(t),
    )


def _vmapped(t: Any) -> tuple[Any, ...]:
    return lambda x, w: torch.vmap(lambda row: torch.tanh(w @ row))(x), t(4096, 256), t(256, 256)


def _per_sample(t: Any) -> tuple[Any, ...]:
    def loss(weight: Any, row: Any) -> Any:
        return (weight @ row).tanh().sum()

    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
    return lambda w, x: per_sample(w, x), t.plain(128, 128), t.plain(256, 128)


def _jacobian(t: Any) -> tuple[Any, ...]:
    return (
        lambda x, w: torch.func.jacrev(lambda y: torch.tanh(w @ y))(x),
        t.plain(512),
        t.plain(512, 512),
    )


def _forward_jacobian(t: Any) -> tuple[Any, ...]:
    return (
        lambda x, w: torch.func.jacfwd(lambda y: torch.tanh(w @ y))(x),
        t.plain(512),
        t.plain(512, 512),
    )


def _hessian(t: Any) -> tuple[Any, ...]:
    return (
        lambda x, w: torch.func.hessian(lambda y: torch.tanh(w @ y).sum())(x),
        t.plain(128),
        t.plain(128, 128),
    )


def _jvp(t: Any) -> tuple[Any, ...]:
    return (
        lambda x, v: torch.func.jvp(lambda y: y.tanh().exp(), (x,), (v,)),
        t.plain(2048, 512),
        t.plain(2048, 512),
    )


def _sampled(make: Callable[[Any], Any], draw: str = "rsample") -> Build:
    return lambda t: (lambda x: getattr(make(x), draw)(), t(2048, 512))


def _log_prob(make: Callable[[Any], Any], value: Callable[[Any], Any]) -> Build:
    return lambda t: (lambda x: make(x).log_prob(value(t)).sum(), t(2048, 512))


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


def _offloaded(t: Any) -> tuple[Any, ...]:
    def run(x: Any) -> Any:
        with torch.autograd.graph.save_on_cpu():
            return (x.tanh() * x.exp()).sigmoid()

    return run, t(2048, 512)


BOTH: dict[str, Build] = {
    "gradient_penalty": _penalty,
    "vmap": _vmapped,
    "per_sample_gradients": _per_sample,
    "jacrev": _jacobian,
    "jacfwd": _forward_jacobian,
    "hessian": _hessian,
    "jvp": _jvp,
    "own_function": lambda t: (_Square.apply, t(4096, 512)),
    "save_on_cpu": _offloaded,
    "distribution.Normal": _sampled(lambda x: distributions.Normal(x, x.exp())),
    "distribution.Laplace": _sampled(lambda x: distributions.Laplace(x, x.exp())),
    "distribution.Categorical": _sampled(lambda x: distributions.Categorical(logits=x), "sample"),
    "distribution.Categorical/entropy": _sampled(
        lambda x: distributions.Categorical(logits=x), "entropy"
    ),
    "distribution.Bernoulli": _sampled(lambda x: distributions.Bernoulli(logits=x), "sample"),
    "distribution.Normal/log_prob": _log_prob(
        lambda x: distributions.Normal(x, x.exp()), lambda t: t.plain(2048, 512)
    ),
    "distribution.Categorical/log_prob": _log_prob(
        lambda x: distributions.Categorical(logits=x), lambda t: t.whole(512, 2048)
    ),
    "kl/Normal": lambda t: (
        lambda x, y: distributions.kl_divergence(
            distributions.Normal(x, x.exp()), distributions.Normal(y, y.exp())
        ).sum(),
        t(2048, 512), t(2048, 512),
    ),
    "mlp": lambda t: (lambda x, network: network(x), t(4096, 256), _network(t)),
    "mlp/loss": lambda t: (lambda x, network: F.mse_loss(network(x), x), t(4096, 256), _network(t)),
    "contrastive": lambda t: (
        lambda x, y: F.cross_entropy(
            F.normalize(x) @ F.normalize(y).t() / 0.07, torch.arange(1024, device=x.device)
        ),
        t(1024, 512), t(1024, 512),
    ),
    "nested_checkpoint": lambda t: (
        lambda x, network: torch.utils.checkpoint.checkpoint(network, x, use_reentrant=False),
        t(4096, 256), _network(t),
    ),
    "shared_gradient": lambda t: (lambda x: x.tanh() + x.exp() + x.sin(), t(4096, 512)),
    "grid_of_distances": lambda t: (
        lambda x, y: (x[:, None] - y[None]).pow(2).sum(-1), t(512, 32), t(512, 32),
    ),
}  # fmt: skip

SINGLE: dict[str, Build] = {
    "distribution.Gamma": _sampled(lambda x: distributions.Gamma(x.exp(), x.exp())),
    "distribution.Beta": _sampled(lambda x: distributions.Beta(x.exp(), x.exp())),
    "distribution.Dirichlet": _sampled(lambda x: distributions.Dirichlet(x.exp())),
    "distribution.StudentT": _sampled(lambda x: distributions.StudentT(x.exp() + 1)),
    "distribution.Poisson": _sampled(lambda x: distributions.Poisson(x.exp()), "sample"),
    "distribution.Gumbel": _sampled(lambda x: distributions.Gumbel(x, x.exp())),
    "distribution.RelaxedBernoulli": _sampled(
        lambda x: distributions.RelaxedBernoulli(torch.ones((), device=x.device), logits=x)
    ),
    "distribution.OneHotCategorical": _sampled(
        lambda x: distributions.OneHotCategorical(logits=x), "sample"
    ),
    "distribution.Mixture": lambda t: (
        lambda w, m: distributions.MixtureSameFamily(
            distributions.Categorical(logits=w), distributions.Normal(m, 1.0)
        ).log_prob(torch.zeros(4096, device=m.device)).sum(),
        t(4096, 64), t(4096, 64),
    ),
    "nested_tensor": lambda t: (
        lambda *x: torch.nested.nested_tensor(list(x), layout=torch.jagged).values() * 2,
        *(t.plain(length, 256) for length in range(100, 600, 50)),
    ),
}  # fmt: skip
