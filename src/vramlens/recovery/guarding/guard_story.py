"""What a guard has been through: its events, and the report in words and findings."""

from __future__ import annotations

from dataclasses import dataclass

from vramlens.analyses.finding import Finding
from vramlens.ground.conf_text import installed_variable
from vramlens.ground.verdict import Verdict
from vramlens.units import counted, format_size

_SHOWN = 8
_ACTS = ("split", "checkpoint", "offload")
NO_OPTIMIZER = "no optimizer: gradients only; the program must step and reset them"
FOREIGN = (
    "the optimizer has none of the model's parameters: does it belong to another model, or "
    "does it keep copies?"
)
UNCHECKED = "splits without a check (verify=False), so gradients may change"


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a guard has stopped, and the way on.

    Attributes:
        step: the step that could not be made, counted from 1.
        reason: in words, for the first line.
        next: what to do, for that reason.
    """

    step: int
    reason: str
    next: str


@dataclass(frozen=True, slots=True)
class GuardEvent:
    """One thing that happened.

    Attributes:
        step: the step in which it happened, counted from 1.
        kind: failure, split, grow, free_cached, checkpoint, offload, admission, check, refusal,
            held, step or note.
        text: in words.
        changes_numbers: whether training from here on is not the same as without it.
        bytes: what it is about, where that is known.
    """

    step: int
    kind: str
    text: str
    changes_numbers: bool = False
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class GuardReport:
    """A guard's story; printed, it says in its first line how training went.

    Attributes:
        steps: committed steps.
        failures: out-of-memory errors that it met.
        recovered: those after which training went on.
        micro_batch: samples in one part now; None: whole batches.
        forwards: how many times the loss function was called; ``calls``: for how many batches.
        stop: why it has stopped; None: it has not.
        events: all that happened, oldest first (the first and last hundred of a kind that repeats).
        left_out: events that are not among them.
        elsewhere: steps that this rank ran again because memory ran out on another one.
        caught: requests that the allocator refused beside those: something caught them (cuDNN, the
            guard's own check).
        trainer: whether a Trainer's own steps are guarded.
    """

    steps: int
    failures: int
    recovered: int
    micro_batch: int | None
    calls: int
    forwards: int
    stop: Stop | None
    events: tuple[GuardEvent, ...]
    left_out: int = 0
    trainer: bool = False
    elsewhere: int = 0
    caught: int = 0

    @property
    def _made_by(self) -> str:
        return "guard_trainer" if self.trainer else "guard"

    @property
    def stopped(self) -> bool:
        """Whether no further step can be made."""
        return self.stop is not None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What deserves an answer, most useful first."""
        candidates = (
            self._changed_numbers(),
            self._refused(),
            self._kept_bytes(),
            self._fragmentation(),
        )
        return tuple(finding for finding in candidates if finding is not None)

    def _of_kind(self, kind: str) -> list[GuardEvent]:
        return [event for event in self.events if event.kind == kind]

    def _changed_numbers(self) -> Finding | None:
        changes = [event for event in self.events if event.changes_numbers]
        if not changes:
            return None
        return Finding(
            "guard_changes_numbers",
            Verdict.PROVEN,
            f"From step {changes[0].step:,} on, training differs from training without the guard",
            evidence=_distinct_texts(changes)[:4],
            fix=f"{self._made_by}(..., strict=True) refuses this and tries another remedy",
        )

    def _refused(self) -> Finding | None:
        refusals = _distinct_texts(self._of_kind("refusal"))
        if not refusals:
            return None
        return Finding("guard_refused", Verdict.PROVEN, refusals[0], evidence=refusals[1:4])

    def _kept_bytes(self) -> Finding | None:
        events = self._of_kind("held")
        if not events:
            return None
        return Finding(
            "guard_bytes_held",
            Verdict.PROVEN,
            events[-1].text,
            bytes=events[-1].bytes,
            fix="find what keeps it: vramlens.who_holds(tensor), or vramlens leaks on a recording",
        )

    def _fragmentation(self) -> Finding | None:
        events = self._of_kind("free_cached")
        if not events:
            return None
        return Finding(
            "guard_fragmentation",
            Verdict.LIKELY,
            f"{counted(len(events), 'failure')} came from fragmentation: enough memory was "
            "free, but not in one block",
            bytes=events[-1].bytes,
            evidence=(events[-1].text,),
            fix=f"{installed_variable()}=expandable_segments:True",
        )

    def __str__(self) -> str:
        lines = [self.headline]
        if self.forwards > self.calls:
            called = "the Trainer's training_step" if self.trainer else "loss_fn"
            lines.append(
                f"  {called} was called {self.forwards:,} times for"
                f" {counted(self.calls, 'batch', 'batches')} (including parts and repeated "
                "attempts, without checks)"
            )
        shown = (*self.events[:2], *self.events[2:][2 - _SHOWN :])
        event_lines = [f"  step {event.step:,}: {event.text}" for event in shown]
        if len(self.events) > _SHOWN:
            more = counted(len(self.events) - _SHOWN + self.left_out, "more event")
            event_lines.insert(2, f"  ... {more} in .events ...")
        lines += event_lines
        shown_texts = {event.text for event in shown}
        for finding in self.findings:
            if finding.id == "guard_refused" and shown_texts.issuperset(
                (finding.title, *finding.evidence)
            ):
                continue  # its lines stand above
            lines.append(f"{finding.verdict}: {finding.title}")
            lines += [f"  {text}" for text in finding.evidence]
        lines.append(self._next())
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    @property
    def headline(self) -> str:
        """How training went, in one sentence."""
        steps = counted(self.steps, "step")
        if self.stop is not None:
            return f"Stopped: {self.stop.reason} (in step {self.stop.step:,})"
        if not self.failures and (self.elsewhere or self.caught):
            return self._headline_of_others(steps)
        if not self._has_acted:
            return f"Memory did not run out in {steps}; the guard changed nothing."
        if self.failures and not self.recovered:
            failed = counted(self.failures, "out-of-memory error")
            return (
                f"{failed} in step {self.steps + 1:,}, which then ended with another error; "
                f"{steps} completed."
            )
        size = (
            f". Batches now run in parts of at most {counted(self.micro_batch, 'sample')}."
            if self.micro_batch
            else "."
        )
        outcome = f"{self._same}{size}"
        if not self.failures:
            return f"Memory did not run out in {steps}, thanks to earlier changes; {outcome}"
        return f"Survived {counted(self.recovered, 'out-of-memory error')} in {steps}; {outcome}"

    @property
    def _has_acted(self) -> bool:
        acts = any(event.kind in _ACTS for event in self.events)
        return bool(self.failures or self.micro_batch or acts)

    def _headline_of_others(self, steps: str) -> str:
        """The first sentence where memory ran out, but not in an attempt of this guard."""
        where = []
        if self.elsewhere:
            where.append(
                f"on another rank in {counted(self.elsewhere, 'step')}, which this rank repeated"
            )
        if self.caught:
            refused = counted(self.caught, "request")
            where.append(
                f"for {refused} of this process that were caught elsewhere (by cuDNN, or by a "
                "check of the guard)"
            )
        return f"Memory ran out {'; and '.join(where)}: {steps} completed; {self._same}."

    @property
    def _same(self) -> str:
        """Words on whether training is what it would be without the guard."""
        if any(event.changes_numbers for event in self.events):
            return "training differs from training without the guard"
        if any(event.text == UNCHECKED for event in self.events):
            return "gradients were not compared with those of whole batches (verify=False)"
        return "gradients equal those of whole batches, except for rounding and dropout masks"

    def _next(self) -> str:
        if self.stop is not None:
            return f"next: {self.stop.next}"
        fix = next((finding.fix for finding in self.findings if finding.fix), None)
        if fix is not None:
            return f"next: {fix}"
        if self.micro_batch and self.trainer:
            return (
                "next: reuse what was learned: guard_trainer(trainer,"
                f" micro_batch={self.micro_batch})"
            )
        if self.micro_batch:
            return (
                f"next: reuse what was learned: guard(..., micro_batch={self.micro_batch}), or keep"
                " guard.state_dict() in your checkpoint"
            )
        return "next: nothing to do"


class GuardStory:
    """Collects events; of a kind that repeats without end it keeps the first and the last
    hundred.
    """

    def __init__(self) -> None:
        self._first: list[GuardEvent] = []
        self._last: list[GuardEvent] = []
        self.left_out = 0

    def add(self, event: GuardEvent) -> None:
        """One more."""
        if len(self._first) < 100:
            self._first.append(event)
            return
        self._last.append(event)
        if len(self._last) > 100:
            self._last.pop(0)
            self.left_out += 1

    @property
    def events(self) -> tuple[GuardEvent, ...]:
        """Those that were kept."""
        return (*self._first, *self._last)


def size_words(size_bytes: int | None) -> str:
    """A size in words, where it is known."""
    return "" if size_bytes is None else f" ({format_size(size_bytes)} requested)"


def _distinct_texts(events: list[GuardEvent]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(event.text for event in events))
