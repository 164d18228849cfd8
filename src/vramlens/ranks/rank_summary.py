"""The summary of one rank: some kilobytes that are enough to compare it with any number of
others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vramlens.analyses.finding import Place
from vramlens.ground.verdict import Verdict
from vramlens.ranks.hints import Hint
from vramlens.units import format_size

_SHORT = 0.9
"""Memory is short on a device of which so much is reserved."""
Span = tuple[int, int, int]
"""Ranks that are evenly apart: the first, how many, and the step."""


@dataclass(frozen=True, slots=True)
class LineUse:
    """The use of memory by one line of the program (in one kind of call) on one rank.

    Attributes:
        place: the user line; None for what has none.
        hints: what its stacks went through.
        category, phase: what most of its bytes are for, and when they were asked for.
        peak_bytes: the most requested bytes of it that were alive at once, whenever that was.
        at_peak_bytes: of it, alive at the device's own peak.
        allocations: how many in all.
        total_bytes: of all of them, requested.
        per_step: allocations in the usual one of the steps that have any (the lower median).
        sizes: how many different sizes they have.
        static: whether most of its bytes were there before the first step ended and stayed to the
            last.
        kept_bytes: of those alive at the device's peak, what lived for a whole step or longer; 0 in
            a summary that is older than that question.
        main_bytes: the size of those that hold most of it at the device's peak; 0 where nothing of
            it is alive then, or the summary is older than that question.
    """

    place: Place | None
    hints: Hint
    category: str
    phase: str
    peak_bytes: int
    at_peak_bytes: int
    allocations: int
    total_bytes: int
    per_step: int
    sizes: int
    static: bool
    kept_bytes: int = 0
    main_bytes: int = 0

    @property
    def mean_bytes(self) -> float:
        """Of one allocation."""
        return self.total_bytes / max(1, self.allocations)

    def times_as_large(self, peer: LineUse) -> float:
        """How many times as large its allocations are as a peer's, on average."""
        return self.mean_bytes / max(1.0, peer.mean_bytes)


@dataclass(frozen=True, slots=True)
class FrameUse:
    """The use of memory by all that one line of the user's code calls, itself included.

    Attributes:
        place: the line.
        depth: how many frames of the user's code are outside of it.
        total_bytes: requested in all.
        at_peak_bytes: of it, alive at the device's peak.
        reserved_bytes: of the segments that were reserved for it, those there at the highest
            reserved memory.
    """

    place: Place
    depth: int
    total_bytes: int
    at_peak_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class Stray:
    """Memory of a rank on a device that is not its own.

    Attributes:
        device: where.
        reserved_bytes: of segments there, the peak; 0 where there is a context alone.
        process_bytes: all that this process has there, contexts included; None where no driver was
            asked.
        place: the line that asked for it; None where it is older than the recording.
        hints: what that line's stack went through.
    """

    device: int
    reserved_bytes: int
    process_bytes: int | None
    place: Place | None
    hints: Hint


@dataclass(frozen=True, slots=True)
class RankGrowth:
    """Memory that grows with every step: a leak's verdict, line, bytes per step and so far, steps,
    what to do, and the lines that asked for it, the largest first (() where it is told at a caller,
    or the summary is older than that question); whether no module computed it, as what a replay
    buffer keeps (likewise true of older ones).
    """

    verdict: Verdict
    place: Place | None
    bytes_per_step: int
    bytes: int
    steps: int
    fix: str | None
    lines: tuple[Place, ...] = ()
    is_stored_data: bool = True

    @property
    def places(self) -> frozenset[Place | None]:
        """The line at which it is told, and those that asked for it."""
        return frozenset((self.place, *self.lines))

    def leaked_bytes(self, at_peak_bytes: int, most_bytes: int, recorded_steps: int) -> int:
        """What leaked until the peak, or in all where most of it came after the peak: the first and
        the last step leak as well, and are not judged.

        Args:
            at_peak_bytes: what its lines hold at the peak, beside what peers without a leak hold.
            most_bytes: the same at each line's own highest moment.
            recorded_steps: how many steps there are.
        """
        of_all_steps = self.bytes_per_step * recorded_steps
        at_peak = min(at_peak_bytes, of_all_steps)
        if 2 * at_peak >= self.bytes:
            return at_peak
        return max(self.bytes, min(most_bytes, of_all_steps))

    def words(self, recorded_steps: int) -> str:
        """How it grows: with each step, or with some of them."""
        if 2 * self.steps <= recorded_steps:
            size = format_size(self.bytes // self.steps)
            return f"{size} more each time, {self.steps:,} times in {recorded_steps:,} steps"
        return f"{format_size(self.bytes_per_step)} more after each of {self.steps:,} steps"


@dataclass(frozen=True, slots=True)
class AvoidableUse:
    """Memory that one edit gives back, as a finding of the rank alone tells it.

    Attributes:
        id: of the finding, listed in docs/findings.md.
        verdict: how certain it is.
        bytes: how much.
        place: the line; None where there is none.
        title, evidence, fix: of the finding.
    """

    id: str
    verdict: Verdict
    bytes: int
    place: Place | None
    title: str
    evidence: tuple[str, ...]
    fix: str


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters of modules that are called alike but for numbers, of which training makes one use.

    Attributes:
        modules: numbers as ranges: ``model.layers.{0-11}.linear{1-2}``.
        use: ``stepped``, ``unstepped`` or ``frozen``, as docs/capture.md has it.
        count, bytes: of the parameters.
        digest: the sum of their digests, each of a name (without that of the outermost module) and
            a size; modulo 1 << 48.
        dtype: the type of their elements; "" where they have several, or nobody knows.
        parts: how many ranks have a part of each of them; 0 where they are no DTensors, or nobody
            knows.
    """

    modules: str
    use: str
    count: int
    bytes: int
    digest: int
    dtype: str = ""
    parts: int = 0


@dataclass(frozen=True, slots=True)
class RankFailure:
    """The request that failed on a rank: when (microseconds since the epoch), in which step, for
    how much, where, whether it ended the program, and why it failed; whether the limit of its
    process refused it, not the GPU (false in a summary that is older than that question).
    """

    time_us: int
    step: int | None
    requested_bytes: int
    place: Place | None
    died: bool
    cause: str | None = None
    at_own_limit: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """The start of a rank's process by its launcher.

    Attributes:
        job: the launcher's name for the job; None where it has none.
        attempt: which start of it, from 0; None where the launcher does not count.
        launcher_pid: the process that started it.
        command: the program and its arguments.
    """

    job: str | None = None
    attempt: int | None = None
    launcher_pid: int | None = None
    command: str = ""


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One rank.

    Attributes:
        rank: its number in the job, or the device's where one recording's devices are compared.
        source: the recording.
        device: the device that it works on; -1 where it holds memory of none.
        host, pid, world_size: from the recording; None where it does not say.
        groups: the process groups it was in: what each is called, and its ranks as spans (first,
            count, step).
        peak_requested_bytes, peak_allocated_bytes, peak_reserved_bytes: of its device, over the
            whole run.
        before_bytes: requested bytes that were there before the recording began.
        total_bytes: of the device; None where the recording does not say.
        step_peaks: the highest requested bytes in each step.
        lines: what each line held, the largest first; those beyond the first 400 are left out.
        frames: what each frame of the user's code and all that it calls held, likewise.
        strays: memory on other devices.
        leaks: what grew with every step.
        avoidable: what one edit would give back; () in a summary that is older than that question.
        parameters: what training does with the parameters on its device, the largest groups first;
            () where that is not known after two steps, or the summary is older than that question.
        recomputed_bytes: requested in all by backward passes that computed again what was not kept
            (activation checkpointing); None where the summary is older than that question.
        ledger: kinds and bytes of the device's memory as the driver counted it at the end; empty if
            it was not asked.
        pinned_bytes: page-locked memory of its host at the end, in use or kept for later; None
            where the recording does not say.
        driver_pid: its process, as the driver counts processes; None if it was not asked.
        neighbors: the other processes on its device at the end: number and bytes, as the driver
            counts them.
        failure: the last request that failed; None if none did.
        ended: why the recording was written (``Meta.trigger``: error, sigterm, exit, ...), and
            when, in microseconds since the epoch by its machine's clock; None where it does not
            say.
        ending: how the program ended, in one line (``Meta.ending``).
        missing: what the recording does not hold.
        local_rank: its number on its machine.
        device_name: the model of its GPU.
        started_us: when recording began, in microseconds since the epoch.
        step_us: the median time of its steps, in microseconds; None where fewer than two are
            recorded.
        launch: how its process was started.
        alloc_conf: the allocator's settings, as text; "" for PyTorch's own, None where the
            recording does not say.
    """

    rank: int
    source: str
    device: int = -1
    host: str | None = None
    pid: int | None = None
    world_size: int | None = None
    groups: tuple[tuple[str, tuple[Span, ...]], ...] = ()
    peak_requested_bytes: int = 0
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    before_bytes: int = 0
    total_bytes: int | None = None
    step_peaks: tuple[int, ...] = ()
    lines: tuple[LineUse, ...] = field(default=(), repr=False)
    frames: tuple[FrameUse, ...] = field(default=(), repr=False)
    strays: tuple[Stray, ...] = ()
    leaks: tuple[RankGrowth, ...] = ()
    avoidable: tuple[AvoidableUse, ...] = ()
    parameters: tuple[ParameterGroup, ...] = ()
    recomputed_bytes: int | None = None
    ledger: tuple[tuple[str, int], ...] = ()
    pinned_bytes: int | None = None
    driver_pid: int | None = None
    neighbors: tuple[tuple[int, int], ...] = ()
    failure: RankFailure | None = None
    ended: tuple[str, int] | None = None
    ending: str | None = None
    missing: tuple[str, ...] = ()
    local_rank: int | None = None
    device_name: str | None = None
    started_us: int | None = None
    step_us: int | None = None
    launch: Launch | None = None
    alloc_conf: str | None = None

    @property
    def died(self) -> bool:
        """True if a request for memory that failed ended it."""
        return self.failure is not None and self.failure.died

    @property
    def is_short(self) -> bool:
        """True if it ran out of memory, or nearly."""
        has_none_left = self.peak_reserved_bytes >= _SHORT * (self.total_bytes or 1 << 62)
        return self.died or has_none_left

    @property
    def recomputed_share(self) -> float | None:
        """The share of its requested bytes that were computed again; None where that is unknown."""
        if self.recomputed_bytes is None:
            return None
        return self.recomputed_bytes / max(1, sum(line.total_bytes for line in self.lines))

    @property
    def trains(self) -> bool:
        """True if it came to a backward pass."""
        return any(line.phase in ("backward", "optimizer") for line in self.lines)

    @property
    def is_frozen(self) -> bool:
        """True if it ran forward passes and kept nothing of them for a backward pass."""
        runs = any(line.phase == "forward" for line in self.lines)
        keeps = any(line.category in ("activations", "gradients") for line in self.lines)
        return runs and not keeps and not self.died

    def bytes_of(self, category: str) -> int:
        """The peaks of the lines of a category, summed."""
        return sum(line.peak_bytes for line in self.lines if line.category == category)

    def was_ended_by(self, trigger: str) -> bool:
        """True if its recording was written for that reason."""
        return self.ended is not None and self.ended[0] == trigger


def ranks_of_span(span: Span) -> range:
    """The ranks that a span counts off."""
    first, count, step = span
    return range(first, first + count * step, step or 1)
