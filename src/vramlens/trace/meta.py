"""What a recording of vramlens' own says about itself: the program, the machine, when and why it
was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vramlens.cards.card_room import PredictionMargins


@dataclass(frozen=True, slots=True)
class DeviceMeta:
    """One device when the recording was written; None where the recording does not say.

    Attributes:
        name, uuid: of the GPU.
        total_bytes: its memory.
        memory_fraction: what ``torch.cuda.set_per_process_memory_fraction`` had set; 1.0 is no
            limit.
        limit_bytes: what the process could reserve at most.
        stats: ``torch.cuda.memory_stats``, flat.
    """

    name: str | None = None
    uuid: str | None = None
    total_bytes: int | None = None
    memory_fraction: float | None = None
    limit_bytes: int | None = None
    stats: Mapping[str, int] = field(default_factory=dict)

    @property
    def process_limit_bytes(self) -> int | None:
        """What the process may reserve, where that is less than the device has; else None."""
        limit, fraction = self.limit_bytes, self.memory_fraction
        if fraction is not None:
            if not 0 < fraction < 1:
                return None
            if limit is None and self.total_bytes is not None:
                limit = int(self.total_bytes * fraction)
        if limit is not None and self.total_bytes is not None and limit >= self.total_bytes:
            return None
        return limit


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """A batch of token numbers, or the mask of one, that is partly padding.

    Attributes:
        rows, columns: its sizes.
        used_columns: those that hold something else than padding in some row.
    """

    rows: int
    columns: int
    used_columns: int


@dataclass(frozen=True, slots=True)
class IgnoredLabels:
    """Labels of a batch, one a position, of which no loss looks at some.

    Attributes:
        rows, columns: their sizes.
        ignored: how many are -100, which PyTorch's losses leave out.
    """

    rows: int
    columns: int
    ignored: int


@dataclass(frozen=True, slots=True)
class RowLengths:
    """The lengths of a batch's rows, of which most are far shorter than the longest.

    Attributes:
        rows: how many.
        longest, total: the longest, and the sum of all.
    """

    rows: int
    longest: int
    total: int


@dataclass(frozen=True, slots=True)
class FailureMeta:
    """The out-of-memory error that made the program write the recording; None where the recording
    does not say.

    Attributes:
        device: where it happened.
        requested_bytes: what was asked for.
        device_free_bytes: what the driver said was free.
        message: the error's text.
        expression: of the program that asked, as its file has it.
        node: the operation whose gradient was being computed, as autograd calls it; None outside of
            a backward pass.
        source: the text of the lines that held the most then, and of their callers, by file and
            line.
        while_handling: whether the program was handling another such error on that thread.
        padded_batch: the batch with most padding, where it could be read.
        ignored_labels: the labels of which most are ignored, likewise.
        row_lengths: batches that may be the one, likewise; those with most padding first.
        idle_checkpointing: the class of a layer with gradient checkpointing that was in eval mode;
            None without one.
    """

    device: int | None = None
    requested_bytes: int | None = None
    device_free_bytes: int | None = None
    message: str | None = None
    expression: str | None = None
    node: str | None = None
    source: Mapping[tuple[str, int], str] = field(default_factory=dict)
    while_handling: bool = False
    padded_batch: PaddedBatch | None = None
    ignored_labels: IgnoredLabels | None = None
    row_lengths: tuple[RowLengths, ...] = ()
    idle_checkpointing: str | None = None


@dataclass(frozen=True, slots=True)
class GroupMeta:
    """A process group that the program was in.

    Attributes:
        name: PyTorch's name for it.
        description: what the program or the device mesh calls it, such as ``mesh_dp``; empty if
            nothing.
        spans: its global ranks, as evenly spaced spans: first, count, step.
    """

    name: str
    description: str
    spans: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class DecisionsMeta:
    """What numbers decide that a prediction had to make up.

    Attributes:
        places: files and lines of the tests that ask for them.
        sure_bytes: requested at the peak of a run that does the least it can there; None where that
            is as good as all.
        is_open: whether memory hangs on the turns of a loop that nothing else ends.
    """

    places: tuple[tuple[str, int], ...]
    sure_bytes: int | None = None
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class WholeRunMeta:
    """What a predicted run needs beyond a failure on the way, without a limit.

    Attributes:
        peak_reserved_bytes: the likeliest peak.
        low_bytes, high_bytes: between which it lies; high is None where turns of a loop decide it
            that nobody knows.
        floor_bytes: the most bytes alive at once.
    """

    peak_reserved_bytes: int
    low_bytes: int
    high_bytes: int | None
    floor_bytes: int


@dataclass(frozen=True, slots=True)
class Meta:
    """A recording's ``meta.json``; None where it does not say.

    Attributes:
        vramlens, torch, cuda, driver, python, platform: versions.
        command: the program and its arguments.
        trigger: why it was written: oom, error, sigterm, sighup, sigabrt, exit, signal, steps,
            every, api or predicted.
        ending: how the program ended, in one line: the exception that nobody caught, or where a
            signal found it.
        pid, host, rank, local_rank, world_size: which process of which job.
        groups: the process groups that it was in, beside the default one.
        device_name: of the current GPU.
        devices: by device index.
        environment: environment variables that set the allocator.
        max_events: how many events a device's ring holds.
        wrapped: by device, whether the ring was full and its earliest events are overwritten.
        step: steps counted when it was written.
        step_source: by what they were: ``optimizer`` or ``vramlens.step``.
        module_marks: whether the events' ``user_metadata`` are module paths.
        has_autocast: whether a module was seen to run under autocast.
        failure: the error that it was written for.
        decisions: what made-up numbers decide, where it was predicted and they decide anything.
        margins: what a prediction leaves open of a card.
        whole_run: what a predicted run needs whose failure this is.
        started_us, written_us: when recording began and when this was written, in microseconds
            since the epoch.
        dump_seconds: how long writing it held the program.
        job, attempt: the launcher's name for the job, and which start of it this is, from 0.
        launcher_pid: the process that started this one.
    """

    vramlens: str | None = None
    torch: str | None = None
    cuda: str | None = None
    driver: str | None = None
    python: str | None = None
    platform: str | None = None
    command: tuple[str, ...] = ()
    trigger: str | None = None
    ending: str | None = None
    pid: int | None = None
    host: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    groups: tuple[GroupMeta, ...] = ()
    device_name: str | None = None
    devices: Mapping[int, DeviceMeta] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    max_events: int | None = None
    wrapped: Mapping[int, bool] = field(default_factory=dict)
    step: int | None = None
    step_source: str | None = None
    module_marks: bool = False
    has_autocast: bool = False
    failure: FailureMeta | None = None
    decisions: DecisionsMeta | None = None
    margins: PredictionMargins | None = None
    whole_run: WholeRunMeta | None = None
    started_us: int | None = None
    written_us: int | None = None
    dump_seconds: float | None = None
    job: str | None = None
    attempt: int | None = None
    launcher_pid: int | None = None

    def device(self, index: int) -> DeviceMeta:
        """What it says of a device; an empty one where it says nothing."""
        return self.devices.get(index, DeviceMeta())

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing at all, as of a bare PyTorch snapshot."""
        return self == Meta()

    @property
    def is_prediction(self) -> bool:
        """True if ``vramlens predict`` wrote it: no GPU had this memory."""
        # A redacted one has no command; what a tool has made may have no trigger.
        commands = (("vramlens", "predict"), ("vramlens.predict",))
        return self.trigger == "predicted" or self.command[:2] in commands
