"""The largest batch that fits: from two or three probes, without provoking a failure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

from vramlens.argument_types import (
    limit_given,
    module,
    number_given,
    optional,
    required_function,
    takes,
    text,
)
from vramlens.errors import UsageError
from vramlens.recovery.batch_size.batch_size_answer import BatchSize
from vramlens.recovery.batch_size.peak_fit import PeakFit, Probe
from vramlens.recovery.batch_size.probe import MakeBatch, Prober
from vramlens.recovery.losses.part_losses import LossFunction
from vramlens.recovery.meters import Meter, device_of, meter_of, not_counted
from vramlens.units import size_in_bytes

if TYPE_CHECKING:
    import torch

    from vramlens.recovery.batch_size.scaled_requests import ScaledRequests

_MOST_PROBES = 3
_CLOSE = 0.7
"""A probe above this share of the limit is close enough to trust the line through it."""
_NEARLY = 0.9
"""Of the size that is likely the largest: there the last probe verifies it."""
_JUMP = 0.95
"""Of the limit: up to there a probe may come by the upper bound and with what is lost between
blocks.
"""
_MARGIN = 0.015
"""Of the limit: rounding to blocks, workspaces that depend on the size, cache that cannot be
given back.
"""
_REPLAY_MARGIN = 0.005
"""Of the limit, where the allocator's replay counts all of that: what it cannot know."""
_MOST_SAMPLES = 10**9
_BISECTIONS = 50
_VERIFIED = 0.85
"""Of the answer: a probe so large verifies it."""


@takes(
    model=module,
    make_batch=required_function,
    loss_fn=required_function,
    limit=limit_given,
    largest=optional(number_given),
    start=number_given,
    device=optional(text),
)
def find_batch_size(  # noqa: PLR0913 - public: its options are keywords
    model: torch.nn.Module,
    make_batch: MakeBatch,
    loss_fn: LossFunction,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    limit: int | str | None = None,
    largest: int | None = None,
    start: int = 2,
    meter: Meter | None = None,
    device: str | None = None,
) -> BatchSize:
    """The largest batch that fits, from at most three probes, none of which is expected to fail.

    Each probe is two real steps (forward, backward, optimizer), the first of them with state and
    cache as a program has that begins. Sizes are those at which the upper bound of the peak
    (``peak_fit``) stays below 85% of the limit; once one comes close, the last probe is at 90% of
    the size that then is likely. On a GPU the answer comes from what two probes asked of the
    allocator, which PyTorch records for as long as a probe runs, continued to larger sizes and
    replayed. Where that tells nothing, or somebody is recording already, it comes from the line
    through the last two, less what fragmentation took there. Parameters, optimizer state, buffers,
    gradients and random numbers are put back.

    Args:
        make_batch: n -> a batch of n samples of the largest shape that training will see (the
            longest sequence).
        loss_fn: (model, batch) -> a mean loss, or (sum, count).
        limit: bytes, or as 22GiB; by default what this process can have: what it has reserved and
            what is free. With ``device="predicted"`` also a card's name, such as "l4".
        largest: never more samples than this.
        start: samples in the first probe; fewer are tried if they do not fit.
        device: "predicted": no GPU is needed; steps are predicted as by ``vramlens.predict``. It
            needs a ``limit``.

    Raises:
        UsageError: bytes are not counted (on the CPU), no limit is known, or an argument is out of
            range.
    """
    if device == "predicted":
        return _predicted(model, make_batch, loss_fn, optimizer, limit, largest, start)
    trained_on = device_of(model, "find_batch_size")
    meter = meter or meter_of(trained_on)
    if start < 1 or (largest is not None and largest < start):
        raise UsageError(
            f"find_batch_size: start={start}, largest={largest}: start must be between 1 and "
            "largest"
        )
    if meter.kind == "none":
        raise not_counted("find_batch_size", trained_on.type)
    limit_bytes, limited_by = _limit(limit, meter)
    prober = Prober(model, loss_fn, optimizer, meter)
    try:
        return search(prober, make_batch, limit_bytes, limited_by, largest, start)
    finally:
        prober.close()


def _predicted(
    model: torch.nn.Module,
    make_batch: MakeBatch,
    loss_fn: LossFunction,
    optimizer: torch.optim.Optimizer | None,
    limit: int | str | None,
    largest: int | None,
    start: int,
) -> BatchSize:
    from vramlens.recovery.batch_size.predicted_batch_size import (
        PredictedSizes,
        largest_predicted,
        predicted_limit,
    )

    if limit is None:
        raise UsageError("find_batch_size: without a GPU, the limit is unknown: pass limit='22GiB'")
    card, limit_bytes, card_bytes, limited_by = predicted_limit(limit)
    sizes = PredictedSizes(
        model=model, make_batch=make_batch, loss_fn=loss_fn, optimizer=optimizer, card=card
    )
    scaled = sizes.requests_by_size(limit_bytes, start)
    sure = sizes.surely_fitting(scaled, card_bytes)
    low, size, high = (sure[0], *sure) if sure else largest_predicted(scaled, limit_bytes)
    size = min(size, largest or size)
    served = scaled.served(size, limit_bytes)
    return BatchSize(
        size=size,
        low=min(low, size),
        high=high,
        limit_bytes=limit_bytes,
        limited_by=f"{limited_by}; no GPU was used",
        fullest_phase="",
        predicted_bytes=served.allocated_bytes,
        per_sample_bytes=0,
        persistent_bytes=0,
        verified_share=sizes.probes[-1].peak_bytes / limit_bytes,
        probes=tuple(sizes.probes),
        failures=0,
        fit=None,
        replayed=True,
        full_speed=size,
        reserved_bytes=served.reserved_bytes,
        is_predicted=True,
        is_sure=sure is not None,
        on_card=sizes.on_card(scaled, size, card_bytes) if size else "",
    )


def search(
    prober: Prober,
    make_batch: MakeBatch,
    limit_bytes: int,
    limited_by: str,
    largest: int | None,
    start: int,
) -> BatchSize:
    """The largest batch, by at most three probes.

    Raises:
        UsageError: bytes are not counted.
    """
    probes: list[Probe] = []
    fit: PeakFit | None = None
    replayed: _Estimate | None = None
    too_large = math.inf
    size = start
    for _ in range(_MOST_PROBES):
        probe = prober.probe(size, make_batch)
        if probe is None:
            too_large = min(too_large, size)
            fitting = probes[-1].size if probes else 0
            if size - fitting <= 1:
                break
            size = (size + fitting) // 2
            continue
        if probe.peak_bytes <= 0:  # a meter that counts nothing here: any size would seem to fit
            raise not_counted("find_batch_size")
        probes.append(probe)
        fit = _fit(prober, probes)
        replayed = _by_replay(fit, limit_bytes)
        next_size = _next_size(fit, replayed, limit_bytes)
        next_size = int(min(next_size, too_large - 1, largest or math.inf, _MOST_SAMPLES))
        if next_size <= size:
            break
        size = next_size
    if fit is None:
        return _none_fits(prober, limit_bytes, limited_by)
    return _answer(prober, fit, replayed, (limit_bytes, limited_by), largest, too_large)


def _none_fits(prober: Prober, limit_bytes: int, limited_by: str) -> BatchSize:
    return BatchSize(
        size=0,
        low=0,
        high=0,
        limit_bytes=limit_bytes,
        limited_by=limited_by,
        fullest_phase="",
        predicted_bytes=0,
        per_sample_bytes=0,
        persistent_bytes=prober.persistent_bytes,
        verified_share=0.0,
        probes=(),
        failures=prober.failures,
        fit=None,
    )


def _fit(prober: Prober, probes: list[Probe]) -> PeakFit:
    by_size = tuple(sorted(probes, key=lambda probe: probe.size))
    return PeakFit(prober.persistent_bytes, prober.gradient_bytes, by_size)


def _next_size(fit: PeakFit, replayed: _Estimate | None, limit_bytes: int) -> float:
    """Samples in the next probe; not more than in the last one where none is needed."""
    if len(fit.probes) == 1:
        return fit.jump(limit_bytes)
    last = fit.probes[-1]
    if replayed is not None:
        return 0 if last.size >= _VERIFIED * replayed.size else _NEARLY * replayed.size
    if last.retries:
        return 0  # any larger would be a gamble
    close = last.peak_bytes >= _CLOSE * limit_bytes
    goal = _NEARLY * likely_size(fit, limit_bytes) if close else fit.jump(limit_bytes)
    # One small probe does not show what is lost between blocks.
    return min(goal, sure_size(fit, _JUMP * limit_bytes))


@dataclass(frozen=True, slots=True)
class _Estimate:
    """The largest size, as far as probes tell: the likeliest, and between which the true one
    lies.
    """

    size: float
    low: float
    high: float
    peak_bytes: float
    full_speed: float | None = None
    reserved_bytes: int = 0


def _by_replay(fit: PeakFit, limit_bytes: int) -> _Estimate | None:
    """From the requests of two probes, served by the replayed allocator; None where none tell
    them.
    """
    scaled = _scaled(fit.probes)
    if scaled is None:
        return None
    margin = max(_REPLAY_MARGIN, _error_of_replay(fit.probes, limit_bytes))
    low, size, high = (
        scaled.largest(int(limit_bytes * (1 + share))) for share in (-2 * margin, -margin, margin)
    )
    room = int(limit_bytes * (1 - margin))
    served = scaled.served(size, room)
    full_speed = size if served.workspaces_fit else scaled.largest(room, with_workspaces=True)
    return _Estimate(
        size=size,
        low=low,
        high=high,
        peak_bytes=served.allocated_bytes,
        full_speed=full_speed,
        reserved_bytes=served.reserved_bytes,
    )


def _scaled(probes: Sequence[Probe]) -> ScaledRequests | None:
    """The requests by size, from the largest two probes that made the same ones."""
    # It brings NumPy, which guard does without.
    from vramlens.recovery.batch_size.scaled_requests import scaled_requests

    noted = [probe.requests for probe in probes if probe.requests is not None]
    for larger, smaller in combinations(reversed(noted), 2):
        scaled = scaled_requests(smaller, larger)
        if scaled is not None:
            return scaled
    return None


def _error_of_replay(probes: Sequence[Probe], limit_bytes: int) -> float:
    """How far the other probes were from telling what the last one reserved, as a share of the
    limit.
    """
    scaled, last = _scaled(probes[:-1]), probes[-1]
    if scaled is None or last.retries:
        return 0.0
    served = scaled.served(last.size, limit_bytes)
    return abs(served.reserved_bytes - last.reserved_bytes) / limit_bytes


def _by_fit(fit: PeakFit, limit_bytes: int) -> _Estimate:
    """From the peaks of the last two probes."""
    size = likely_size(fit, limit_bytes)
    return _Estimate(
        size=size,
        low=sure_size(fit, limit_bytes),
        high=fit.largest(limit_bytes)[1],
        peak_bytes=fit.low_bytes(size),
    )


def _doubts(replayed: _Estimate | None, top: Probe, fails_at: float, size: float) -> Iterator[str]:
    """Reasons why no more is known to fit than what was measured."""
    if replayed is None and top.retries:  # workspaces take what the fit does not see
        yield "the allocator had to empty its cache"
    if size >= fails_at:
        yield f"a batch of {int(fails_at):,} failed, unlike the prediction from smaller batches"


def _answer(
    prober: Prober,
    fit: PeakFit,
    replayed: _Estimate | None,
    limit: tuple[int, str],
    largest: int | None,
    too_large: float,
) -> BatchSize:
    limit_bytes, limited_by = limit
    top = fit.probes[-1]
    cap = allowed = min(largest or math.inf, too_large - 1)
    estimate = replayed or _by_fit(fit, limit_bytes)
    doubts = tuple(_doubts(replayed, top, too_large, estimate.size))
    if doubts:
        cap = min(cap, top.size)
        limited_by = ": ".join((limited_by, *doubts))
    size = int(min(max(estimate.size, top.size), cap, _MOST_SAMPLES))
    high = min(max(estimate.high, size), allowed)
    if largest is not None and size == largest:
        limited_by = f"largest={largest}"
    is_estimate = size == int(estimate.size)
    peak_bytes = estimate.peak_bytes if is_estimate else fit.low_bytes(size)
    full_speed = size if estimate.full_speed is None else int(min(estimate.full_speed, size))
    # Requests take megabytes.
    probes = tuple(replace(probe, requests=None) for probe in fit.probes)
    return BatchSize(
        size=size,
        low=int(min(estimate.low, size)),
        high=int(high) if math.isfinite(high) else None,
        limit_bytes=limit_bytes,
        limited_by=limited_by,
        fullest_phase=top.phase,
        predicted_bytes=int(peak_bytes),
        per_sample_bytes=int(fit.per_sample_bytes),
        persistent_bytes=prober.persistent_bytes,
        verified_share=top.peak_bytes / limit_bytes,
        probes=probes,
        failures=prober.failures,
        fit=replace(fit, probes=probes),
        replayed=replayed is not None,
        full_speed=full_speed,
        reserved_bytes=estimate.reserved_bytes if is_estimate else 0,
    )


def likely_size(fit: PeakFit, limit_bytes: float) -> float:
    """The likeliest size at a limit of what the allocator reserves."""
    return _beside_what_is_lost(fit, limit_bytes, fit.guess)


def sure_size(fit: PeakFit, limit_bytes: float) -> float:
    """The size at which the upper bound of the peak reaches a limit of what the allocator
    reserves.
    """
    return _beside_what_is_lost(fit, limit_bytes, lambda room: fit.largest(room)[0])


def _beside_what_is_lost(
    fit: PeakFit, limit_bytes: float, size_at: Callable[[float], float]
) -> float:
    """The size at a limit, less a margin and what the allocator holds between live blocks."""
    room, lost_bytes = limit_bytes * (1 - _MARGIN), fit.lost_per_sample_bytes
    low, high = 0.0, size_at(room)
    if not lost_bytes or math.isinf(high):
        return high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if size_at(room - lost_bytes * middle) >= middle:
            low = middle
        else:
            high = middle
    return low


def _limit(limit: int | str | None, meter: Meter) -> tuple[int, str]:
    """The bytes that may be allocated, and what sets that."""
    device_limit = meter.limit_bytes()
    if limit is None:
        if device_limit is None:
            raise UsageError(
                "find_batch_size: the limit of this device is unknown: pass limit='22GiB'"
            )
        return device_limit
    size = size_in_bytes(limit)
    if size <= 0:
        raise UsageError(f"find_batch_size: limit={limit}: pass a size above zero")
    if device_limit is not None and device_limit[0] < size:
        return device_limit
    return size, "the given limit"
