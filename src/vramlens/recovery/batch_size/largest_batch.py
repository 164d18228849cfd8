"""The largest batch that fits: from two or three probes, without provoking a failure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vramlens.analyses.finding import Finding
from vramlens.errors import UsageError
from vramlens.ground.verdict import Verdict
from vramlens.recovery.batch_size.peak_fit import PeakFit, Probe
from vramlens.recovery.batch_size.probe import MakeBatch, Prober
from vramlens.recovery.losses.part_losses import LossFunction
from vramlens.recovery.meters import Meter, meter_of, not_counted
from vramlens.units import counted, format_size, parse_size

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
_VERIFIED = 0.85
"""Of the answer: a probe so large verifies it."""


@dataclass(frozen=True, slots=True)
class BatchSize:
    """What ``find_batch_size`` found; printed, it says so in words.

    Attributes:
        size: samples in the largest batch that fits, with a margin of 0.5 % of the limit or more
            (``replayed``), else of 1.5 %; 0: not even one.
        low, high: the largest size lies between these if requests (``replayed``), else peaks by
            phase, are affine, and fragmentation does not grow faster than the batch; high None: not
            bounded.
        limit_bytes: what this process can allocate; ``limited_by``: what sets that.
        fullest_phase: forward, backward or step: where the peak is at the largest probe.
        predicted_bytes: the peak at ``size``.
        per_sample_bytes: what one more sample takes.
        persistent_bytes: model and optimizer state.
        verified_share: the largest probe's peak as a share of the limit.
        probes: what was measured, without the requests; ``failures``: probes that ran out of
            memory.
        fit: predicts peaks of other sizes.
        replayed: whether ``size``, ``low`` and ``high`` come from the probes' requests, served by
            PyTorch's allocator replayed at other sizes; else from the fit.
        full_speed: of the sizes up to ``size``, the largest at which every workspace fits: above it
            cuDNN falls back to slower algorithms, and the allocator empties its cache in each step.
    """

    size: int
    low: int
    high: int | None
    limit_bytes: int
    limited_by: str
    fullest_phase: str
    predicted_bytes: int
    per_sample_bytes: int
    persistent_bytes: int
    verified_share: float
    probes: tuple[Probe, ...]
    failures: int
    fit: PeakFit | None
    replayed: bool = False
    full_speed: int = 0

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The answer as a claim with its evidence."""
        measured = tuple(
            f"{counted(p.size, 'sample')}: {format_size(p.peak_bytes)}, fullest in the {p.phase}"
            for p in self.probes
        )
        if not self.size:
            title = f"Not even one sample fits into {format_size(self.limit_bytes)}"
            return (
                Finding(
                    "batch_size",
                    Verdict.PROVEN,
                    title,
                    evidence=measured,
                    fix="vramlens.plan(..., budget=...)",
                ),
            )
        title = f"A batch of {self.size:,} fits into {format_size(self.limit_bytes)}"
        verdict = (
            Verdict.PROVEN
            if any(probe.size >= self.size for probe in self.probes)
            else Verdict.LIKELY
        )
        return (
            Finding(
                "batch_size",
                verdict,
                title,
                self.predicted_bytes,
                None,
                measured,
                f"batch_size={self.size}",
            ),
        )

    def __str__(self) -> str:
        limit = f"{format_size(self.limit_bytes)} ({self.limited_by})"
        if not self.size:
            return (
                f"Not even one sample fits: the limit is {limit}, the model and its optimizer have"
                f" {format_size(self.persistent_bytes)}.\nnext: vramlens.plan(model, make_batch, loss_fn, budget=...)"
            )
        range_ = (
            f"lies between {self.low:,} and {self.high:,}"
            if self.high is not None
            else f"is {self.low:,} or more"
        )
        if self.low == self.high:
            range_ = f"is {self.low:,}, if peaks go on as measured"
        failed = f", {counted(self.failures, 'failure')}" if self.failures else ", no failure"
        lines = [
            f"The largest batch is {self.size:,}: predicted {format_size(self.predicted_bytes)} of {limit}.",
            f"  the true maximum {range_}; measured up to {self.verified_share:.0%} of the limit"
            f" in {counted(len(self.probes), 'probe')}{failed}{', their requests replayed' if self.replayed else ''}",
            f"  model and optimizer {format_size(self.persistent_bytes)}, each sample"
            f" {format_size(self.per_sample_bytes)}; the fullest moment is in the {self.fullest_phase}",
        ]
        if self.full_speed < self.size:
            lines.append(
                f"  above {self.full_speed:,} it is slower: workspaces no longer fit, cuDNN takes other algorithms"
            )
        lines += [
            f"  {probe.size:>7,} samples  {format_size(probe.peak_bytes):>11}  {probe.phase:<8}  {probe.seconds:.2f} s"
            for probe in self.probes
        ]
        return "\n".join([*lines, f"next: batch_size={self.size}"])

    def __repr__(self) -> str:
        return str(self)


def find_batch_size(
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
    (``peak_fit``) stays below 85 % of the limit; once one comes close, the last probe is at 90 % of
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
            what is free.
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
    found = meter or meter_of(next(model.parameters()).device)
    if start < 1 or (largest is not None and largest < start):
        raise UsageError(
            f"find_batch_size: start={start}, largest={largest}: start counts from 1, up to largest"
        )
    if found.kind == "none":
        raise not_counted("find_batch_size", next(model.parameters()).device.type)
    limit_bytes, limited_by = _limit(limit, found)
    prober = Prober(model, loss_fn, optimizer, found)
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
    from vramlens.recovery.batch_size.predicted_batch_size import PredictedSizes, largest_predicted

    if limit is None:
        raise UsageError("find_batch_size: without a GPU no limit is known: say limit='22GiB'")
    limit_bytes = parse_size(limit) if isinstance(limit, str) else int(limit)
    sizes = PredictedSizes(model, make_batch, loss_fn, optimizer)
    scaled = sizes.requests_by_size(limit_bytes, start)
    low, size, high = largest_predicted(scaled, limit_bytes)
    size = min(size, largest or size)
    told = scaled.served(size, limit_bytes)
    return BatchSize(
        size=size,
        low=min(low, size),
        high=high,
        limit_bytes=limit_bytes,
        limited_by="the given limit (predicted, no GPU was used)",
        fullest_phase="step",
        predicted_bytes=told.allocated_bytes,
        per_sample_bytes=0,
        persistent_bytes=0,
        verified_share=sizes.probes[-1].peak_bytes / limit_bytes,
        probes=tuple(sizes.probes),
        failures=0,
        fit=None,
        replayed=True,
        full_speed=size,
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
            before = probes[-1].size if probes else 0
            if size - before <= 1:
                break
            size = (size + before) // 2
            continue
        if probe.peak_bytes <= 0:  # a meter that counts nothing here: any size would seem to fit
            raise not_counted("find_batch_size")
        probes.append(probe)
        fit = _fit(prober, probes)
        replayed = _by_replay(fit, limit_bytes)
        wanted = int(
            min(_next_size(fit, replayed, limit_bytes), too_large - 1, largest or math.inf, 1e9)
        )
        if wanted <= size:
            break
        size = wanted
    if fit is None:
        return BatchSize(
            0,
            0,
            0,
            limit_bytes,
            limited_by,
            "",
            0,
            0,
            prober.persistent_bytes,
            0.0,
            (),
            prober.failures,
            None,
        )
    return _answer(prober, fit, replayed, limit_bytes, limited_by, largest, too_large)


def _fit(prober: Prober, probes: list[Probe]) -> PeakFit:
    return PeakFit(
        prober.persistent_bytes,
        prober.gradient_bytes,
        tuple(sorted(probes, key=lambda one: one.size)),
    )


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
    return min(
        goal, sure_size(fit, _JUMP * limit_bytes)
    )  # one small probe does not show what is lost between blocks


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
    told = scaled.served(size, room)
    full_speed = size if told.workspaces_fit else scaled.largest(room, with_workspaces=True)
    return _Estimate(size, low, high, told.allocated_bytes, full_speed)


def _scaled(probes: Sequence[Probe]) -> ScaledRequests | None:
    """The requests by size, from the largest two probes that made the same ones."""
    from vramlens.recovery.batch_size.scaled_requests import (
        scaled_requests,  # brings NumPy, which guard does without
    )

    for last in range(len(probes) - 1, 0, -1):
        for first in range(last - 1, -1, -1):
            smaller, larger = probes[first].requests, probes[last].requests
            found = None if smaller is None or larger is None else scaled_requests(smaller, larger)
            if found is not None:
                return found
    return None


def _error_of_replay(probes: Sequence[Probe], limit_bytes: int) -> float:
    """How far the other probes were from telling what the last one reserved, as a share of the
    limit.
    """
    scaled, last = _scaled(probes[:-1]), probes[-1]
    if scaled is None or last.retries:
        return 0.0
    return (
        abs(scaled.served(last.size, limit_bytes).reserved_bytes - last.reserved_bytes)
        / limit_bytes
    )


def _by_fit(fit: PeakFit, limit_bytes: int) -> _Estimate:
    """From the peaks of the last two probes."""
    size = likely_size(fit, limit_bytes)
    return _Estimate(
        size, sure_size(fit, limit_bytes), fit.largest(limit_bytes)[1], fit.low_bytes(size)
    )


def _answer(
    prober: Prober,
    fit: PeakFit,
    replayed: _Estimate | None,
    limit_bytes: int,
    limited_by: str,
    largest: int | None,
    too_large: float,
) -> BatchSize:
    top = fit.probes[-1]
    cap = known = min(largest or math.inf, too_large - 1)
    found = replayed or _by_fit(fit, limit_bytes)
    if replayed is None and top.retries:  # workspaces take what the fit does not see
        cap = min(cap, top.size)
        limited_by = f"{limited_by}: the allocator had to empty its cache"
    if (
        found.size >= too_large
    ):  # a probe failed where it should have fitted: only what was measured is known to fit
        cap = min(cap, top.size)
        limited_by = (
            f"{limited_by}: a batch of {int(too_large):,} failed, against what smaller ones told"
        )
    size = int(min(max(found.size, top.size), cap, 1e9))
    most = min(max(found.high, size), known)
    if largest is not None and size == largest:
        limited_by = f"largest={largest}"
    light = replace(
        fit, probes=tuple(replace(probe, requests=None) for probe in fit.probes)
    )  # they take megabytes
    return BatchSize(
        size=size,
        low=int(min(found.low, size)),
        high=int(most) if math.isfinite(most) else None,
        limit_bytes=limit_bytes,
        limited_by=limited_by,
        fullest_phase=top.phase,
        predicted_bytes=int(found.peak_bytes if size == int(found.size) else fit.low_bytes(size)),
        per_sample_bytes=int(fit.per_sample_bytes),
        persistent_bytes=prober.persistent_bytes,
        verified_share=top.peak_bytes / limit_bytes,
        probes=light.probes,
        failures=prober.failures,
        fit=light,
        replayed=replayed is not None,
        full_speed=size if found.full_speed is None else int(min(found.full_speed, size)),
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
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if size_at(room - lost_bytes * middle) >= middle else (low, middle)
        )
    return low


def _limit(limit: int | str | None, meter: Meter) -> tuple[int, str]:
    if limit is not None:
        size = parse_size(limit) if isinstance(limit, str) else int(limit)
        if size <= 0:
            raise UsageError(f"find_batch_size: limit={limit}: give a size above zero")
        known: Any = meter.limit_bytes()
        if known is not None and known[0] < size:
            return int(known[0]), str(known[1])
        return size, "the given limit"
    found = meter.limit_bytes()
    if found is None:
        raise UsageError("find_batch_size: no limit is known on this device: say limit='22GiB'")
    return found
