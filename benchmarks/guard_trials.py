"""Random trainings with failures anywhere: each step of the guard equals the plain program's, or is
refused in words.

    python benchmarks/guard_trials.py 10000              # on the CPU, float64
    python benchmarks/guard_trials.py 1000 --device cuda # the same on a GPU, half of them with real
    failures python benchmarks/guard_trials.py 300 --ranks 2      # two processes over gloo

A trial draws a model (buffers, norms, frozen parts, noise), a loss (means over samples, labels,
masks and class weights, sums, coupled ones, losses that change or alternate), an optimizer (plain,
foreach, fused, one that writes ``parameter.data``), perhaps a scaler, clipping and accumulation,
and points of failure. A failure is raised by an operator that allocates, in a forward, a backward,
a check or clipping; in an optimizer's step also between parameters and in the middle of a list.
After each step all parameters, buffers and optimizer states are compared with those of the plain
program on whole batches. Exits with 1 if one is not equal, or memory ran out under "No memory ran
out".
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gc
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from vramlens.recovery import guard
from vramlens.recovery.guarding.rank_agreement import PeerFailed

TOLERANCE = {torch.float64: 1e-8, torch.float32: 2e-3}
"""Of a tensor's norm, after up to six steps."""
STEPS = 5
CLASSES = 3


class Failing(TorchDispatchMode):
    """Raises out-of-memory errors: at the given operators, counted from now."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: set[int] = set()
        self.count = self.raised = 0
        self.in_step = False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = function._schema.name.rpartition("::")[2]
        allocates = (
            not name.endswith("_")
            and not function.is_view
            and name not in ("_local_scalar_dense", "detach")
        )
        in_lists = name.endswith("_") and name.startswith(("_foreach", "_fused"))
        if allocates or (self.in_step and name.endswith("_")):
            self.count += 1
            if self.count in self.numbers:
                self.raised += 1
                if in_lists and self.in_step:
                    self._half(function, args, kwargs)
                raise torch.OutOfMemoryError(
                    "CUDA out of memory. Tried to allocate 2.00 MiB. [trial]"
                )
        return function(*args, **kwargs)

    def _half(self, function: Any, args: Any, kwargs: Any) -> None:
        """What a list operator does before it fails in the middle."""
        count = len(args[0]) // 2
        with contextlib.suppress(Exception):
            function(
                *(arg[:count] if isinstance(arg, list) and arg else arg for arg in args), **kwargs
            )


# Models.


class Average(nn.Module):
    """Keeps an average of what it saw."""

    def __init__(self, width: int, starts_at: int = 0) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(width))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.starts_at = starts_at

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and self.starts_at >= 0:
            with torch.no_grad():
                self.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
                self.calls += 1
        return x


class Noise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * torch.randn_like(x) if self.training else x


class Replacing(nn.Module):
    """Puts a new tensor where its buffer was."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("latest", torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.latest = 0.5 * self.latest + x.detach().mean(0)
        return x


class Counting(nn.Module):
    """Counts its calls in a plain number, and computes with it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * (1 + 0.1 * self.calls)


MIDDLES: dict[str, Callable[[int], nn.Module]] = {
    "tanh": lambda width: nn.Tanh(),
    "layer norm": nn.LayerNorm,
    "batch norm": nn.BatchNorm1d,
    "cumulative batch norm": lambda width: nn.BatchNorm1d(width, momentum=None),
    "frozen batch norm": nn.BatchNorm1d,
    "average": Average,
    "replacing": Replacing,
    "noise": lambda width: Noise(),
    "counting": lambda width: Counting(),
    "spectral norm": lambda width: nn.utils.parametrizations.spectral_norm(nn.Linear(width, width)),
}


def make_model(kind: str, dtype: torch.dtype, device: str) -> nn.Module:
    width = 6
    model = nn.Sequential(
        nn.Linear(4, width), MIDDLES[kind](width), nn.Tanh(), nn.Linear(width, CLASSES)
    )
    model = model.to(device, dtype)
    if kind == "frozen batch norm":
        model[1].eval()
    return model


# Losses. Each is given the model and a batch; ``now`` holds what changes from step to step.


def cross_entropy(model: Any, batch: Any, **options: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch["x"]), batch["y"], **options)


def squared(model: Any, batch: Any) -> torch.Tensor:
    return functional.mse_loss(model(batch["x"]), batch["z"])


def per_sample(model: Any, batch: Any) -> torch.Tensor:
    return (model(batch["x"]) - batch["z"]).square().mean(1)


def masked(model: Any, batch: Any) -> torch.Tensor:
    return (per_sample(model, batch) * batch["m"]).sum() / batch["m"].sum().clamp(min=1)


def contrastive(model: Any, batch: Any) -> torch.Tensor:
    vectors = functional.normalize(model(batch["x"]), dim=-1)
    return functional.cross_entropy(
        vectors @ vectors.T / 0.3, torch.arange(len(vectors), device=vectors.device)
    )


def class_weights(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor([1.0, 2.0, 5.0], dtype=x.dtype, device=x.device)


LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "cross entropy": lambda m, b: cross_entropy(m, b),
    "ignored labels": lambda m, b: cross_entropy(m, b, ignore_index=0),
    "class weights": lambda m, b: cross_entropy(m, b, weight=class_weights(b["x"])),
    "smoothed": lambda m, b: cross_entropy(m, b, label_smoothing=0.1),
    "squared": squared,
    "masked by hand": masked,
    "chosen by mask": lambda m, b: (
        per_sample(m, b)[b["m"] > 0].sum() / (b["m"] > 0).sum().clamp(min=1)
    ),
    "masked over the mean": lambda m, b: (
        per_sample(m, b) * b["m"] / b["m"].mean().clamp(min=0.01)
    ).mean(),
    "masked inside": lambda m, b: (per_sample(m, b) * (b["m"] / b["m"].sum().clamp(min=1))).sum(),
    "masked by column": lambda m, b: (
        ((m(b["x"]) * b["m"][:, None]).sum(0) / b["m"].sum().clamp(min=1)).square().mean()
    ),
    "sum": lambda m, b: per_sample(m, b).sum(),
    "sum over a number": lambda m, b: per_sample(m, b).sum() / 7,
    "sum and count": lambda m, b: (per_sample(m, b).sum(), len(b["x"])),
    "sum and labels": lambda m, b: (
        cross_entropy(m, b, ignore_index=0, reduction="sum"),
        (b["y"] != 0).sum().clamp(min=1),
    ),
    "regularised": lambda m, b: (
        squared(m, b) + 1e-3 * sum(p.square().sum() for p in m.parameters())
    ),
    "two means": lambda m, b: squared(m, b) + 0.5 * cross_entropy(m, b, ignore_index=0),
    "root": lambda m, b: squared(m, b).sqrt(),
    "contrastive": contrastive,
    "normalised": lambda m, b: (
        ((m(b["x"]) / m(b["x"]).detach().std().clamp(min=0.1)) - b["z"]).square().mean()
    ),
    "with text": lambda m, b: squared(m, b) if b["kind"] == "a" else contrastive(m, b),
}


@dataclass
class Plan:
    """All that a trial draws; the plain program and the guard's have the same."""

    seed: int
    device: str = "cpu"
    dtype: torch.dtype = torch.float64
    now: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        draw = random.Random(self.seed)
        self.middle = draw.choice([*MIDDLES, "tanh", "tanh", "layer norm", "layer norm"])
        self.losses = [draw.choice(list(LOSSES)) for _ in range(3)]
        self.order = draw.choice(
            [
                "one",
                "one",
                "alternating",
                "A A B",
                "changes inside",
                "grows inside",
                "counts inside",
            ]
        )
        self.optimizer = draw.choice(
            ["sgd", "momentum", "adam", "adam foreach", "adam fused", "data", "data momentum"]
        )
        self.scaled = draw.random() < 0.25 and self.dtype is torch.float32
        self.clip = draw.choice([None, None, 0.5, "function"])
        self.window = draw.choice([1, 1, 1, 2, 3])
        self.backup = draw.random() < 0.2
        self.thaws = draw.random() < 0.15
        self.freezes = draw.random() < 0.1
        self.micro_batch = draw.choice([None, None, 1, 2, 3])
        self.sizes = [draw.randint(2, 9) for _ in range(STEPS * 3)]
        self.mask_from = draw.randint(0, STEPS)
        self.failures = {draw.randint(1, 400) for _ in range(draw.choice([0, 1, 1, 2, 3, 5]))}
        self.step_failures = {draw.randint(1, 60)} if draw.random() < 0.3 else set()

    def batch(self, index: int, rank: int = 0) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(self.seed * 131 + index * 7 + rank)
        count = self.sizes[index]
        mask = torch.ones(count, dtype=self.dtype)
        if index >= self.mask_from:
            mask = (torch.rand(count, generator=generator) < 0.6).to(self.dtype)
        batch = {
            "x": torch.randn(count, 4, generator=generator, dtype=self.dtype),
            "y": torch.randint(
                0 if index >= self.mask_from else 1, CLASSES, (count,), generator=generator
            ),
            "z": torch.randn(count, CLASSES, generator=generator, dtype=self.dtype),
            "m": mask,
        }
        moved: dict[str, Any] = {name: leaf.to(self.device) for name, leaf in batch.items()}
        return moved | {"kind": "a" if index < self.mask_from else "b"}

    def loss(self, state: dict[str, Any]) -> Callable[[Any, Any], Any]:
        first, second = LOSSES[self.losses[0]], LOSSES[self.losses[1]]
        if self.order == "changes inside":
            return lambda m, b: (first if state["step"] < 3 else second)(m, b)
        if self.order == "grows inside":
            return lambda m, b: squared(m, b) + state["share"] * contrastive(m, b)
        if self.order == "counts inside":

            def counting(m: Any, b: Any) -> Any:
                state["calls"] += 1
                return squared(m, b) * (1 + 0.1 * state["calls"])

            return counting
        if self.order == "alternating":
            return LOSSES[self.losses[state["step"] % 2]]
        if self.order == "A A B":
            return LOSSES[self.losses[state["step"] % 3 // 2]]
        return first


class ByData(torch.optim.Optimizer):
    """As many packages' optimizers: writes ``parameter.data``, and keeps its momentum outside of
    ``state``.
    """

    def __init__(self, parameters: Any, lr: float, momentum: float = 0.0) -> None:
        super().__init__(parameters, {"lr": lr})
        self.momentum, self.kept, self.steps = momentum, {}, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.steps += 1
        for group in self.param_groups:
            for index, parameter in enumerate(group["params"]):
                if parameter.grad is None:
                    continue
                change = parameter.grad * group["lr"]
                if self.momentum:
                    change = change + self.momentum * self.kept.get(index, torch.zeros_like(change))
                    self.kept[index] = change
                parameter.data.sub_(change)


def make_optimizer(plan: Plan, model: nn.Module) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    if plan.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=0.05)
    if plan.optimizer == "momentum":
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    if plan.optimizer.startswith("data"):
        return ByData(parameters, 0.05, 0.9 if "momentum" in plan.optimizer else 0.0)
    kind = plan.optimizer.partition(" ")[2]
    options = {kind: True} if kind else {"foreach": False}
    return torch.optim.AdamW(
        parameters, lr=0.02, eps=1e-2, **options
    )  # rounding is not blown up where g is nearly 0


def state_of(model: nn.Module, optimizer: Any) -> list[torch.Tensor]:
    """All that a step changes."""
    tensors = [*model.parameters(), *model.buffers()]
    for state in optimizer.state.values():
        tensors += [value for _, value in sorted(state.items()) if isinstance(value, torch.Tensor)]
    tensors += [value for _, value in sorted(getattr(optimizer, "kept", {}).items())]
    return [tensor.detach().clone().cpu() for tensor in tensors]


def differs(ours: list[torch.Tensor], theirs: list[torch.Tensor], dtype: torch.dtype) -> float:
    """The largest difference, over the tensor's norm; infinite where shapes or numbers of
    tensors differ.
    """
    if len(ours) != len(theirs):
        return float("inf")
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if a.shape != b.shape or a.isfinite().all() != b.isfinite().all():
            return float("inf")
        if b.isfinite().all():
            worst = max(
                worst, float((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-2))
            )
    return worst


class Training:
    """A model with all that belongs to its training, and what changes in step 3."""

    def __init__(self, plan: Plan) -> None:
        torch.manual_seed(plan.seed)
        random.seed(plan.seed)
        self.plan = plan
        self.model = make_model(plan.middle, plan.dtype, plan.device)
        if plan.thaws:
            self.model[0].requires_grad_(False)
        self.optimizer = make_optimizer(plan, self.model)
        self.scaler = torch.amp.GradScaler(plan.device, init_scale=2.0**10) if plan.scaled else None
        self.state: dict[str, Any] = {"step": 0, "share": 0.0, "calls": 0}
        self.called = self.model

    def begin(self, step: int) -> Callable[[Any, Any], Any]:
        """What the program does between steps; gives the loss of this one."""
        self.state["step"] = step
        self.state["share"] = 0.0 if step < 2 else 0.3
        if step == 3:
            if self.plan.thaws:
                self.model[0].requires_grad_(True)
            if self.plan.freezes:
                self.model[3].requires_grad_(False)
            if self.plan.middle == "frozen batch norm":
                self.model[1].train()
        return self.plan.loss(self.state)

    def clip(self) -> Any:
        if self.plan.clip == "function":
            return lambda: nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        return self.plan.clip

    def plain_step(self, step: int, rank: int = 0) -> None:
        plan, loss_fn = self.plan, self.begin(step)
        for part in range(plan.window):
            last = part == plan.window - 1
            alone = last or not hasattr(self.called, "no_sync")
            with contextlib.nullcontext() if alone else self.called.no_sync():
                loss = loss_fn(self.called, plan.batch(step * plan.window + part, rank))
                loss = loss[0] / loss[1] if isinstance(loss, tuple) else loss
                loss = loss / plan.window
                (self.scaler.scale(loss) if self.scaler else loss).backward()
        if self.clip() is not None:
            if self.scaler:
                self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad()


def watched_steps(optimizer: Any, failing: Failing) -> None:
    """Has failures strike in the middle of steps, too."""
    real = optimizer.step

    def step(*args: Any, **kwargs: Any) -> Any:
        failing.in_step = True
        try:
            return real(*args, **kwargs)
        finally:
            failing.in_step = False

    optimizer.step = step


def trial(
    plan: Plan, rank: int = 0, wrap: Callable[[nn.Module], nn.Module] = lambda model: model
) -> dict[str, Any]:
    """How a trial ended: equal, refused (with the words), or wrong."""
    plain = Training(plan)
    plain.called = wrap(plain.model)
    expected = []
    for step in range(STEPS):
        plain.plain_step(step, rank)
        expected.append(state_of(plain.model, plain.optimizer))
    expected_random = torch.get_rng_state()
    training = Training(plan)
    failing = Failing()
    watched_steps(training.optimizer, failing)
    options = {
        "clip": training.clip(),
        "step_backup": plan.backup,
        "micro_batch": plan.micro_batch,
        "timeout_s": 30,
    }
    watch = guard(wrap(training.model), training.optimizer, training.scaler, **options)
    failing.numbers = set() if rank % 2 and plan.seed % 3 else {*plan.failures, *plan.step_failures}
    result: dict[str, Any] = {"outcome": "equal", "steps": 0}
    worst = 0.0
    for step in range(STEPS):
        loss_fn = training.begin(step)
        try:
            for part in range(plan.window):
                batch = plan.batch(step * plan.window + part, rank)
                last = part == plan.window - 1
                with failing:
                    watch.step(batch, loss_fn, commit=last, scale=1 / plan.window)
        except (torch.OutOfMemoryError, PeerFailed) as error:
            result |= {"outcome": "refused", "words": str(error)}
            break
        except Exception as error:
            result |= {"outcome": "error", "words": f"{type(error).__name__}: {error}"}
            break
        worst = max(
            worst, differs(state_of(training.model, training.optimizer), expected[step], plan.dtype)
        )
        result["steps"] += 1
        if not worst <= TOLERANCE[plan.dtype]:
            result |= {"outcome": "wrong", "words": f"step {step + 1} is {worst:.1e} off"}
            break
    headline = watch.report().headline
    if (
        result["outcome"] == "equal"
        and plan.micro_batch is None
        and not torch.equal(torch.get_rng_state(), expected_random)
    ):
        split = any(event.kind == "split" for event in watch.report().events)
        if not split:
            result |= {"outcome": "wrong", "words": "other random numbers"}
    if failing.raised and headline.startswith("Memory did not run out"):
        result |= {"outcome": "wrong", "words": f"{failing.raised} failures, and: {headline}"}
    if (
        result["outcome"] == "refused"
        and "guard" not in result["words"]
        and not watch.report().stopped
    ):
        result |= {"outcome": "wrong", "words": f"a refusal without words: {result['words'][:200]}"}
    result |= {
        "failures": failing.raised,
        "off": worst,
        "headline": headline,
        "split": watch.report().micro_batch,
    }
    return result


def trials(seeds: Iterator[int], device: str, dtype: torch.dtype) -> dict[str, Any]:
    """Counts of outcomes, and the trials that went wrong."""
    counts: collections.Counter[str] = collections.Counter()
    refusals: collections.Counter[str] = collections.Counter()
    wrong, steps, failures, off, began = [], 0, 0, 0.0, time.perf_counter()
    for seed in seeds:
        plan = Plan(seed, device, dtype if seed % 4 else torch.float32)
        result = trial(plan)
        counts[result["outcome"]] += 1
        steps += result["steps"]
        failures += result["failures"]
        if plan.dtype is torch.float64:
            off = max(off, result["off"] if result["outcome"] != "wrong" else 0.0)
        if result["outcome"] == "refused":
            refusals[result["words"].partition("\n")[0][:90]] += 1
        elif result["outcome"] != "equal":
            wrong.append({"seed": seed, **result, "plan": str(vars(plan))})
    return {
        "trials": sum(counts.values()), **counts, "steps": steps, "failures": failures, "furthest_float64": off,
        "seconds": round(time.perf_counter() - began, 1), "refusals": refusals.most_common(8), "wrong_trials": wrong,
    }  # fmt: skip


def real_trial(seed: int) -> dict[str, Any]:
    """A trial on a GPU with a limit below its peak: requests fail where they are made, nothing
    is injected.
    """
    draw = random.Random(seed)
    name = draw.choice([name for name in LOSSES if name not in ("root", "with text")])
    plan = Plan(seed, "cuda", torch.float64)
    plan.sizes = [draw.randint(200_000, 600_000) for _ in plan.sizes]
    plan.middle = draw.choice(["tanh", "layer norm", "batch norm", "average"])
    if name == "contrastive":
        plan.sizes = [size // 200 for size in plan.sizes]
    plan.losses, plan.order, plan.window, plan.micro_batch = [name] * 3, "one", 1, None
    plain, expected = Training(plan), []
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for step in range(STEPS):
        plain.plain_step(step)
        expected.append(state_of(plain.model, plain.optimizer))
    peak = torch.cuda.max_memory_reserved()
    del plain
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    failed_before = torch.cuda.memory_stats()["num_ooms"]
    training = Training(plan)
    watch = guard(training.model, training.optimizer, clip=training.clip(), threshold=1.0)
    torch.cuda.set_per_process_memory_fraction(draw.uniform(0.5, 0.95) * peak / total)
    result: dict[str, Any] = {"outcome": "equal", "steps": 0, "off": 0.0}
    try:
        for step in range(STEPS):
            loss_fn = training.begin(step)
            watch.step(plan.batch(step), loss_fn)
            result["off"] = max(
                result["off"],
                differs(state_of(training.model, training.optimizer), expected[step], plan.dtype),
            )
            result["steps"] += 1
    except torch.OutOfMemoryError as error:
        result |= {"outcome": "refused", "words": str(error)}
    except Exception as error:
        result |= {"outcome": "error", "words": f"{type(error).__name__}: {error}"}
    torch.cuda.set_per_process_memory_fraction(1.0)
    result["failures"] = torch.cuda.memory_stats()["num_ooms"] - failed_before
    result["headline"] = watch.report().headline
    if not result["off"] <= TOLERANCE[plan.dtype]:
        result |= {
            "outcome": "wrong",
            "words": f"step {result['steps']} is {result['off']:.1e} off",
        }
    if result["failures"] and result["headline"].startswith("Memory did not run out"):
        result |= {
            "outcome": "wrong",
            "words": f"{result['failures']} failures, and: {result['headline']}",
        }
    return result | {"plan": f"{plan.middle}, {name}, {plan.optimizer}"}


def real_trials(seeds: Iterator[int]) -> dict[str, Any]:
    """Counts of the outcomes of trials with real failures."""
    results = [(seed, real_trial(seed)) for seed in seeds]
    counts = collections.Counter(result["outcome"] for _, result in results)
    bad = [
        {"seed": seed, **result}
        for seed, result in results
        if result["outcome"] in ("wrong", "error")
    ]
    return {
        "trials": len(results), **counts,
        "steps": sum(result["steps"] for _, result in results),
        "failures": sum(result["failures"] for _, result in results),
        "furthest_float64": max((result["off"] for _, result in results if result["outcome"] != "wrong"), default=0.0),
        "wrong_trials": bad,
    }  # fmt: skip


def rank_trials(rank: int, world: int, store: str, seeds: range, answers: Any) -> None:
    """The trials of one rank: all ranks make the same ones, each with its own batches and
    failures.
    """
    torch.set_num_threads(1)
    quiet()
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    counts: collections.Counter[str] = collections.Counter()
    wrong, failures, steps = [], 0, 0
    for seed in seeds:
        plan = Plan(seed)
        if (
            plan.middle in ("noise", "counting", "spectral norm", "replacing")
            or plan.thaws
            or plan.freezes
        ):
            continue  # DistributedDataParallel itself cannot: it looks at parameters once
        try:
            result = trial(plan, rank, lambda model: DistributedDataParallel(model))
        except RuntimeError as error:  # the plain program fails: none of the guard's affairs
            result = {"outcome": "skipped", "words": str(error), "failures": 0, "steps": 0}
        outcomes: list[Any] = [None] * world
        torch.distributed.all_gather_object(outcomes, result["outcome"])
        if result["outcome"] == "equal" and "refused" in outcomes:
            result = result | {
                "outcome": "wrong",
                "words": "another rank stopped, this one did not",
            }
        counts[result["outcome"]] += 1
        failures += result["failures"]
        steps += result["steps"]
        if result["outcome"] in ("wrong", "error"):
            wrong.append({"seed": seed, "rank": rank, **result, "plan": str(vars(plan))})
    found = {
        "trials": sum(counts.values()),
        **counts,
        "steps": steps,
        "failures": failures,
        "wrong_trials": wrong,
    }
    answers.put((rank, found))
    torch.distributed.barrier()


def in_ranks(world: int, seeds: range) -> dict[str, Any]:
    """What each rank found."""
    context = torch.multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        arguments = [(rank, world, store, seeds, answers) for rank in range(world)]
        processes = [
            context.Process(target=rank_trials, args=row, daemon=True) for row in arguments
        ]
        for process in processes:
            process.start()
        rows = dict(answers.get() for _ in processes)
        for process in processes:
            process.join(60)
    return {
        "ranks": rows,
        "wrong_trials": [row for found in rows.values() for row in found["wrong_trials"]],
    }


def until(seconds: float, seeds: range) -> Iterator[int]:
    """Seeds, as long as there is time."""
    end = time.monotonic() + seconds
    for seed in seeds:
        if time.monotonic() > end:
            return
        yield seed


def quiet() -> None:
    """The guard's remarks on stderr are many here."""
    import vramlens.recovery.guarding.guard as guarding

    guarding.say = lambda *_: None  # type: ignore[assignment]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin no trial after so many"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    quiet()
    seeds = range(options.first, options.first + options.count)
    half = options.seconds / 2
    if options.ranks > 1:
        found = in_ranks(options.ranks, seeds)
    elif options.device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
        injected = trials(until(half, seeds[: len(seeds) // 2]), "cuda", torch.float64)
        real = real_trials(until(half, seeds[len(seeds) // 2 :]))
        found = {
            "injected": injected,
            "real": real,
            "wrong_trials": injected["wrong_trials"] + real["wrong_trials"],
        }
    else:
        found = trials(until(options.seconds, seeds), options.device, torch.float64)
    print(json.dumps(found, indent=1))
    return int(bool(found["wrong_trials"]))


if __name__ == "__main__":
    sys.exit(main())
