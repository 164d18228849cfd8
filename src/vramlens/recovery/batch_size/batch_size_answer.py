"""The answer of ``find_batch_size``: the largest batch, in words and as a finding."""

from __future__ import annotations

from dataclasses import dataclass

from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.recovery.batch_size.peak_fit import PeakFit, Probe
from vramlens.units import counted, format_size


@dataclass(frozen=True, slots=True)
class BatchSize:
    """The answer of ``find_batch_size``; printed, it says so in words.

    Attributes:
        size: samples in the largest batch that fits, with a margin of 0.5% of the limit or more
            (``replayed``), else of 1.5%; 0: not even one.
        low, high: the largest size is between these if requests (``replayed``), else peaks by
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
        reserved_bytes: what PyTorch reserves at ``size``; 0 where that is unknown.
        is_predicted: nothing was measured: then ``fullest_phase`` is empty, and
            ``per_sample_bytes`` and ``persistent_bytes`` are 0, for they are unknown.
        is_sure: whether ``size`` fits a card of the limit's size by all that a prediction leaves open.
        on_card: what else such a card has to hold, and whether ``size`` fits where that is not sure,
            in words; empty where measured.
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
    reserved_bytes: int = 0
    is_predicted: bool = False
    is_sure: bool = False
    on_card: str = ""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The answer as a claim with its evidence."""
        limit = format_size(self.limit_bytes)
        measured = tuple(
            f"{counted(probe.size, 'sample')}: {format_size(probe.peak_bytes)}"
            + ("" if self.is_predicted else f", peak in the {probe.phase}")
            for probe in self.probes
        )
        if not self.size:
            none_fits = Finding(
                "batch_size",
                Verdict.PROVEN,
                f"Not even a single sample fits in {limit}",
                evidence=measured,
                fix="vramlens.plan(..., budget=...)",
            )
            return (none_fits,)
        is_measured = any(probe.size >= self.size for probe in self.probes)
        answer = Finding(
            "batch_size",
            Verdict.PROVEN if is_measured else Verdict.LIKELY,
            f"A batch of {self.size:,} fits into {limit}",
            bytes=self.predicted_bytes,
            evidence=measured,
            fix=f"batch_size={self.size}",
        )
        return (answer,)

    def __str__(self) -> str:
        limit = f"{format_size(self.limit_bytes)} ({self.limited_by})"
        persistent = format_size(self.persistent_bytes)
        if not self.size:
            used = (
                "" if self.is_predicted else f", and the model and its optimizer use {persistent}"
            )
            return (
                f"Not even a single sample fits: the limit is {limit}{used}.\n"
                "next: vramlens.plan(model, make_batch, loss_fn, budget=...)"
            )
        which = "The largest batch that is sure to fit" if self.is_sure else "The largest batch"
        lines = [
            f"{which} is {self.size:,}: predicted {self._peak()} of {limit}.",
            f"  the true maximum {self._range()};"
            f" {'predicted' if self.is_predicted else 'measured'} up to"
            f" {100 * self.verified_share:.0f}% of the limit in"
            f" {counted(len(self.probes), 'probe')}{self._how()}",
        ]
        if self.on_card:
            lines.append(f"  {self.on_card}")
        if not self.is_predicted:
            lines.append(
                f"  model and optimizer {persistent}, each sample "
                f"{format_size(self.per_sample_bytes)}; the peak is in the {self.fullest_phase}"
            )
        if self.full_speed < self.size:
            lines.append(
                f"  above {self.full_speed:,} it is slower, because workspaces no longer fit "
                "and cuDNN uses other algorithms"
            )
        return "\n".join([*lines, *self._probe_lines(), f"next: batch_size={self.size}"])

    def _peak(self) -> str:
        """The peak at ``size``; what is reserved comes first, for that is what the limit bounds."""
        allocated = f"{format_size(self.predicted_bytes)} allocated"
        if not self.reserved_bytes:
            return allocated
        return f"{format_size(self.reserved_bytes)} reserved ({allocated})"

    def _probe_lines(self) -> list[str]:
        """The probes as a table."""
        rows = [
            (
                f"{probe.size:,}",
                format_size(probe.peak_bytes),
                probe.phase,
                f"{probe.seconds:.2f} s",
            )
            for probe in self.probes
        ]
        names = ("samples", "allocated", "peak in", "took")
        lines = []
        for size, peak, phase, took in (names, *rows):
            where = "" if self.is_predicted else f"  {phase:<8}"
            lines.append(f"  {size:>7}  {peak:>11}{where}  {took:>7}")
        return lines

    def __repr__(self) -> str:
        return str(self)

    def _range(self) -> str:
        """Between which sizes the true maximum lies, in words."""
        if self.low == self.high:
            return f"is {self.low:,}, if peaks continue as measured"
        if self.high is None:
            return f"is {self.low:,} or more"
        return f"is between {self.low:,} and {self.high:,}"

    def _how(self) -> str:
        """What became of the probes, in words."""
        replayed = ", with their requests replayed" if self.replayed else ""
        if self.is_predicted:
            return replayed
        failed = counted(self.failures, "failure") if self.failures else "no failure"
        return f", {failed}{replayed}"
