"""The check on first use: whether the gradient of a split batch equals the gradient of the whole one."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vramlens.recovery.batch_parts import Samples
from vramlens.recovery.failures import OUT_OF_MEMORY, failure_of, kind_of, let_go
from vramlens.recovery.losses import CountFunction, LossFunction, Weights, candidates, empty, loss_of
from vramlens.recovery.rollback import Buffers, Gradients, RandomState, host_copy, on_host

if TYPE_CHECKING:
    import torch
else:
    from vramlens.recovery.late_torch import torch

_MOST_SAMPLES = 16
_LOOKED_AT = 65_536  # numbers of each gradient, evenly spread: enough to tell, and small on the host
_FLOOR = 1e-4  # of the largest gradient: below, a gradient is zero but for rounding, as a bias before a softmax has
_BASE = {"torch.float64": 1e-10, "torch.float32": 1e-5}
_HALF = 1e-2
_NOISE = 20.0
_MISSED = 0.1  # of the gradient of the whole
_TOO_NOISY = 0.05
IS_NORMALISED = "is normalised by itself"
_DROPOUT_ARGUMENTS = {
    "scaled_dot_product_attention": 4,
    "multi_head_attention_forward": 10,
    "lstm": 5,
    "gru": 5,
    "rnn_tanh": 5,
    "rnn_relu": 5,
}
"""Functions that drop out inside, with the place of that argument."""


@dataclass(frozen=True, slots=True)
class SplitCheck:
    """What the check found.

    Attributes:
        equal: whether the gradients are equal within ``tolerance``.
        error: the largest difference of a parameter's gradient, its norm over the gradient's norm; None: not compared.
        noise: the same between the whole batch and the whole batch in the opposite order: rounding alone.
        tolerance: up to which a difference counts as rounding.
        parameter: where the largest difference is.
        samples: how many samples were compared, in two parts of unequal size.
        weights: the weights that make them equal.
        told_apart: the labels of which some were ignored, and by which no other weights gave the same gradient: other
            batches that ignore some of them need no check of their own.
        undecided: whether nothing was compared for a reason of this batch: no room, or a loss that is not finite. That
            takes nothing back that an earlier check has proven.
        reason: why they are not equal, or could not be compared; empty where they are.
    """

    equal: bool
    error: float | None
    noise: float | None
    tolerance: float | None
    parameter: str
    samples: int
    weights: Weights
    reason: str = ""
    told_apart: frozenset[str] = frozenset()
    undecided: bool = False


@dataclass(slots=True)
class Checked:
    """What is checked.

    Attributes:
        model: what ``loss_fn`` is given; a compiled model's original, so that dropout can be turned off.
        clean: frees what is cached, after a failure.
    """

    model: Any
    parameters: Sequence[tuple[str, torch.nn.Parameter]]
    loss_fn: LossFunction
    count_fn: CountFunction | None
    devices: Sequence[torch.device]
    clean: Callable[[], None]


def check_split(what: Checked, samples: Samples, most: int) -> SplitCheck:
    """Compares the gradient of a few samples whole with that of the same in two unequal parts, dropout off in both.

    Gradients, buffers and random numbers are left as they were. Half as many samples are taken as long as there is no
    room for them.

    Args:
        most: at most so many samples.
    """
    own = [parameter for _, parameter in what.parameters]
    before, random = Gradients(own), RandomState(what.devices)
    buffers = Buffers(what.model)
    buffers.save()
    count = min(samples.count, most, _MOST_SAMPLES)
    try:
        while count >= 2:
            try:
                return _compared(what, samples, count, buffers, random)
            except Exception as error:
                if kind_of(error) != OUT_OF_MEMORY:
                    raise
                let_go(error)
            _forget(own)
            what.clean()
            count //= 2
    finally:
        _forget(own)
        before.restore()
        buffers.restore()
        random.restore()
    text = (
        "no two samples fit together, so there was nothing to compare: call guard.verify(batch, loss_fn) with smaller"
        " samples before training, or say guard(verify=False)"
    )
    return _not_compared(text, undecided=True)


def _compared(what: Checked, samples: Samples, count: int, buffers: Buffers, random: RandomState) -> SplitCheck:
    whole = samples.part(0, count)
    middle = -(-2 * count // 3) if count > 2 else 1
    parts = [samples.part(0, middle), samples.part(middle, count)]
    sizes = [middle, count - middle]
    turned = Samples(whole).reversed() if samples.reversible else None

    def run(batch: Any) -> _Run:
        buffers.restore()
        random.restore()
        return _gradients(what, batch)

    reference = run(whole)
    problem = _unusable(reference)
    if problem:
        return _not_compared(problem, count, undecided=True)
    again = run(whole)
    if _difference(again.gradients, reference.gradients, what)[0] > _TOO_NOISY:
        return _not_compared("the same batch gave another gradient the second time: it cannot be checked", count)
    noise = 0.0
    if turned is not None:
        noise = _difference(run(turned).gradients, reference.gradients, what)[0]
    try:
        found = [run(part) for part in parts]
    except Exception as error:
        if kind_of(error) == OUT_OF_MEMORY:
            raise
        text = failure_of(error).text[:200]
        return _not_compared(_and_norms(what.model, f"loss_fn fails on {sizes[1]} of {count} samples: {text}"), count)
    base = max((_BASE.get(name, _HALF) for name in reference.dtypes), default=_HALF)
    tolerance = min(max(base, _NOISE * noise), _TOO_NOISY)
    if noise > _TOO_NOISY:
        text = (
            "the order of the samples changes the gradient: the model or the loss draws random numbers of its own, or"
            " depends on the order, so a split cannot be checked"
        )
        return _not_compared(_and_norms(what.model, text), count)
    best: SplitCheck | None = None
    ways: list[tuple[Weights, float]] = []
    for weights, shares in _ways(what, parts, sizes, found, whole):
        if weights.add_up and not all(_weighs(one, reference) for one in found):
            continue  # a part without a gradient would add up with anything
        summed = [_sum(pair, shares) for pair in zip(*(one.gradients for one in found), strict=True)]
        differs, parameter = _difference(summed, reference.gradients, what)
        ways.append((weights, differs))
        if best is None or best.error is None or differs < best.error / 2:
            best = SplitCheck(differs <= tolerance, differs, noise, tolerance, parameter, count, weights)
    assert best is not None
    if best.equal:
        alike = {weights.path for weights, differs in ways if differs <= tolerance and weights is not best.weights}
        labels = {weights.path for weights, _ in ways if weights.path}
        return replace(best, told_apart=frozenset(labels - alike if "" not in alike else ()))
    reason = _why(what.model, best, counted=what.count_fn is not None or reference.count is not None)
    return SplitCheck(False, best.error, noise, tolerance, best.parameter, count, best.weights, reason)


def _ways(
    what: Checked, parts: list[Any], sizes: list[int], found: list[_Run], whole: Any
) -> Iterator[tuple[Weights, list[float]]]:
    """The weights that may be right, with the share of each part."""
    if found[0].count is not None:
        total = sum(run.count or 0.0 for run in found)
        yield Weights("sum and count"), [(run.count or 0.0) / total for run in found]
        return
    ways = candidates(whole) if what.count_fn is None else [Weights("count_fn", what.count_fn)]
    for weights in ways:
        yield weights, [float(share) for share in weights.of(parts, sizes)]


@dataclass(slots=True)
class _Run:
    loss: float
    count: float | None
    gradients: list[torch.Tensor | None]
    dtypes: set[str]


def _gradients(what: Checked, batch: Any) -> _Run:
    """One forward and backward; parts of each gradient, on the host, in double precision."""
    _forget([parameter for _, parameter in what.parameters])
    with _no_dropout():
        loss = loss_of(what.loss_fn(what.model, batch))
        mean = loss.mean
        mean.backward()  # type: ignore[no-untyped-call]
    taken: list[torch.Tensor | None] = []
    dtypes = set()
    for _, parameter in what.parameters:
        gradient = parameter.grad
        if gradient is None:
            taken.append(None)
            continue
        dtypes.add(str(gradient.dtype))
        local: Any = gradient.to_local() if hasattr(gradient, "to_local") else gradient
        if local.layout is not torch.strided:
            local = local.to_dense()
        flat = local.detach().reshape(-1)
        taken.append(host_copy(flat[:: -(-flat.numel() // _LOOKED_AT) or 1], torch.float64))
    _forget([parameter for _, parameter in what.parameters])
    count = None if loss.count is None else float(loss.count)
    return _Run(float(mean.detach()), count, taken, dtypes)


def _forget(parameters: Sequence[torch.nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


def _unusable(run: _Run) -> str:
    if run.loss != run.loss or run.loss in (float("inf"), float("-inf")):
        return f"the loss is {run.loss}: nothing can be compared"
    if not any(gradient is not None for gradient in run.gradients):
        return "no parameter has a gradient"
    if not all(gradient is None or bool(gradient.isfinite().all()) for gradient in run.gradients):
        return "gradients are not finite: nothing can be compared"
    return ""


def _weighs(part: _Run, whole: _Run) -> bool:
    """Whether a part has a finite gradient that could be missed in that of the whole."""
    with on_host():
        ours, theirs = (
            math.sqrt(sum(float(gradient.square().sum()) for gradient in run.gradients if gradient is not None))
            for run in (part, whole)
        )
    return math.isfinite(ours) and ours > _MISSED * theirs


def _sum(gradients: Sequence[torch.Tensor | None], shares: Sequence[float]) -> torch.Tensor | None:
    none = empty(list(shares))
    with on_host():
        parts = zip(gradients, shares, none, strict=True)
        there = [gradient * share for gradient, share, nothing in parts if gradient is not None and not nothing]
        return torch.stack(there).sum(0) if there else None


def _difference(
    ours: Sequence[torch.Tensor | None], theirs: Sequence[torch.Tensor | None], what: Checked
) -> tuple[float, str]:
    """The largest norm of a difference over the norm of the gradient, and the parameter that has it."""
    with on_host():
        largest = max((float(one.norm()) for one in theirs if one is not None), default=0.0)
        worst, where = 0.0, ""
        for (name, _), a, b in zip(what.parameters, ours, theirs, strict=True):
            if a is None and b is None:
                continue
            first = torch.zeros_like(b) if a is None and b is not None else a
            assert first is not None
            second = b if b is not None else torch.zeros_like(first)
            assert second is not None
            difference = float((first - second).norm()) / max(float(second.norm()), _FLOOR * largest, 1e-300)
            if difference != difference:
                difference = float("inf")
            if difference > worst or not where:
                worst, where = difference, name
        return worst, where


def _why(model: Any, check: SplitCheck, *, counted: bool) -> str:
    norms = _norms(model)
    if norms:
        return norms
    text = "the loss of one sample depends on the others (a contrastive loss, statistics over the batch)"
    if not counted:
        text += (
            ", or is a mean over something else than samples (tokens that are not ignored): return (sum, count) or give"
            " count_fn"
        )
    return text


def _and_norms(model: Any, text: str) -> str:
    """A reason, after the one that would hold without it."""
    norms = _norms(model)
    return f"{norms}; besides, {text}" if norms else text


def _norms(model: Any) -> str:
    """The first of the norms over the batch, in words; empty where there is none."""
    norms = [
        f"{type(module).__name__} {name or 'itself'}"
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)
        and (module.training or module.running_mean is None)
    ]
    if not norms:
        return ""
    first = f"{norms[0]} normalises" if len(norms) == 1 else f"{norms[0]} and {len(norms) - 1} more normalise"
    return f"{first} over the batch, so each part {IS_NORMALISED}"


def _not_compared(reason: str, samples: int = 0, *, undecided: bool = False) -> SplitCheck:
    return SplitCheck(False, None, None, None, "", samples, Weights("samples"), reason, undecided=undecided)


@contextlib.contextmanager
def _no_dropout() -> Iterator[None]:
    """Turns dropout off, and nothing else: modules stay in training, so what depends on the batch still does."""
    from torch.overrides import TorchFunctionMode

    class Off(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            name = getattr(function, "__name__", "")
            if "dropout" in name:
                inplace = kwargs.get("inplace", False) or (len(args) > 3 and args[3] is True)
                return args[0] if inplace or name.endswith("_") else args[0].clone()
            place = _DROPOUT_ARGUMENTS.get(name)
            if place is not None:
                if len(args) > place:
                    args = (*args[:place], 0.0, *args[place + 1 :])
                elif "dropout_p" in kwargs:
                    kwargs["dropout_p"] = 0.0
            return function(*args, **kwargs)

    with Off():
        yield
