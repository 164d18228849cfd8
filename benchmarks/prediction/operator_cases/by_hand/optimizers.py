"""Optimizers: the first step is measured without gradients, the second as the forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Build = Callable[[Any], tuple[Any, ...]]

_SHAPES = ((1024, 1024), (1024,), (2048, 512), (512,), (64, 64, 3, 3))


def _steps(name: str, **options: Any) -> Build:
    def build(t: Any) -> tuple[Any, ...]:
        parameters = [torch.nn.Parameter(t.plain(*shape)) for shape in _SHAPES]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer = getattr(torch.optim, name)(parameters, **options)

        def step(*_: Any) -> None:
            optimizer.step()

        return step, *parameters

    return build


def _matrices(name: str, **options: Any) -> Build:
    def build(t: Any) -> tuple[Any, ...]:
        parameters = [torch.nn.Parameter(t.plain(*shape)) for shape in ((1024, 1024), (2048, 512))]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer = getattr(torch.optim, name)(parameters, **options)

        def step(*_: Any) -> None:
            optimizer.step()

        return step, *parameters

    return build


def _closure(t: Any) -> tuple[Any, ...]:
    weight = torch.nn.Parameter(t.plain(512, 512))
    inputs, targets = t.plain(1024, 512), t.plain(1024, 512)
    optimizer = torch.optim.LBFGS([weight], max_iter=4, history_size=4)

    def loss() -> Any:
        optimizer.zero_grad()
        with torch.enable_grad():
            value = (inputs @ weight - targets).pow(2).mean()
        value.backward()
        return value

    def step(*_: Any) -> None:
        optimizer.step(loss)

    return step, weight


def _clipped(**options: Any) -> Build:
    def build(t: Any) -> tuple[Any, ...]:
        parameters = [torch.nn.Parameter(t.plain(*shape)) for shape in _SHAPES]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        return lambda *_: torch.nn.utils.clip_grad_norm_(parameters, 1.0, **options), *parameters

    return build


def _averaged(t: Any) -> tuple[Any, ...]:
    model = t.module(torch.nn.Linear(1024, 1024))
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
    )
    return lambda _: average.update_parameters(model), model


def _scaled(t: Any) -> tuple[Any, ...]:
    parameter = torch.nn.Parameter(t.plain(1024, 1024))
    optimizer, scaler = torch.optim.SGD([parameter], lr=0.1), torch.amp.GradScaler(t.device)

    def step(*_: Any) -> None:
        with torch.enable_grad():
            scaler.scale((parameter * 2).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    return step, parameter


_NAMES = (
    "SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "Adagrad", "RMSprop", "Rprop", "ASGD",
)  # fmt: skip

BOTH: dict[str, Build] = {
    **{f"optim.{name}": _steps(name) for name in _NAMES},
    **{f"optim.{name}/loop": _steps(name, foreach=False) for name in _NAMES},
    **{
        f"optim.{name}/fused": _steps(name, fused=True)
        for name in ("SGD", "Adam", "AdamW", "Adagrad")
    },
    "optim.SGD/momentum": _steps("SGD", lr=0.1, momentum=0.9),
    "optim.SGD/nesterov": _steps("SGD", lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "optim.SGD/momentum_loop": _steps("SGD", lr=0.1, momentum=0.9, weight_decay=0.1, foreach=False),
    "optim.SGD/momentum_fused": _steps("SGD", lr=0.1, momentum=0.9, fused=True),
    "optim.Adam/amsgrad": _steps("Adam", amsgrad=True),
    "optim.Adam/decay": _steps("Adam", weight_decay=0.1),
    "optim.Adam/capturable": _steps("Adam", capturable=True),
    "optim.Adam/amsgrad_fused": _steps("Adam", amsgrad=True, fused=True),
    "optim.RMSprop/centered": _steps("RMSprop", centered=True, momentum=0.9),
    "optim.Adafactor": _steps("Adafactor"),
    "optim.Muon": _matrices("Muon"),
    "clip_grad_norm": _clipped(),
    "clip_grad_norm/loop": _clipped(foreach=False),
    "clip_grad_norm/inf": _clipped(norm_type=float("inf")),
    "swa": _averaged,
}

SINGLE: dict[str, Build] = {"optim.LBFGS": _closure, "grad_scaler": _scaled}
