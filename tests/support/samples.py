"""Explanations made by hand: a run, a failure, an error text and a hostile recording."""

from __future__ import annotations

from dataclasses import replace

from vramlens.analyses.explanation import Explanation, OomVerdict, Peak, RecordingFacts, StepFacts
from vramlens.analyses.finding import Finding, Place
from vramlens.analyses.leaks.recorded_leak import RecordedLeak
from vramlens.analyses.memory.fragmentation import Fragmentation, Pin
from vramlens.analyses.memory.heap import CategoryBytes, Heap, LineBytes, StackBytes
from vramlens.ground.vocabulary import LedgerRow
from vramlens.trace import Frame
from vramlens.units import GIB, MIB

LONG_FOLDER = "/home/somebody/projects/a-rather-long-project-name/src/package/models"


class _OneStack:
    """Stands for the stacks of a recording that has one."""

    def __init__(self, frames):
        self.frames = frames

    def of(self, stack):
        return list(self.frames)


def stack_of(frames, size_bytes, allocations):
    """The bytes of a stack with these frames."""
    return StackBytes(0, size_bytes, allocations, _OneStack(frames))


def line(
    number: int, size: int, *, likely: int = 0, file: str = f"{LONG_FOLDER}/transformer.py"
) -> LineBytes:
    return LineBytes(
        Place(file, number, f"forward_{number}"), size, 1000 + number, likely, "activations"
    )


def heap(event: int = 900) -> Heap:
    lines = tuple(
        line(n, (30 - n) * MIB, likely=5 * MIB if n % 4 == 0 else 0) for n in range(1, 23)
    )
    unattributed = 41 * MIB
    total = sum(row.bytes for row in lines) + unattributed
    stacks = tuple(
        stack_of(
            tuple(Frame(f"{LONG_FOLDER}/deep_{n}.py", d, f"call_{d}") for d in range(1, 20)),
            row.bytes,
            3,
        )
        for n, row in enumerate(lines)
    )
    return Heap(
        device=0,
        event=event,
        step=3,
        requested_bytes=total,
        by_line=lines,
        by_category={
            "activations": CategoryBytes(total - 50 * MIB, "likely"),
            "optimizer_state": CategoryBytes(50 * MIB, "proven"),
        },
        by_phase={"forward": total - 10 * MIB, "optimizer": 10 * MIB},
        by_module={"model.layers.0": 100 * MIB, "model.head": 1 * MIB},
        by_region={"loss [eval]": 30 * MIB},
        by_stack=(*stacks, stack_of((), unattributed, 7)),
        unattributed_bytes=unattributed,
        inferred_bytes=sum(row.inferred_bytes for row in lines),
    )


def finding(
    number: int = 0,
    *,
    fix: str | None = "use a smaller batch: 200.00 MiB less",
    size: int = 200 * MIB,
) -> Finding:
    return Finding(
        id=f"finding_{number}",
        verdict="likely",
        title=f"Finding {number}: 200.00 MiB are kept for the backward pass although nothing there needs them",
        bytes=size,
        place=Place("train.py", 40 + number, "main"),
        evidence=("each step keeps them until its end", "no later operation reads them"),
        fix=fix,
    )


def refuted() -> Finding:
    return Finding(
        "expandable_segments", "not a problem", "expandable_segments does not help: it was on", 0
    )


LEAK = RecordedLeak(
    verdict="proven",
    kind=None,
    place=Place("train.py", 88, "loop"),
    bytes_per_step=36 * MIB,
    bytes=360 * MIB,
    steps=10,
    fix="append loss.item()",
    fix_share=0.0,
)


def run(**changes: object) -> Explanation:
    """A run that ended well."""
    held = heap()
    explanation = Explanation(
        recording=RecordingFacts("run.pickle", "2.11.0", "H200", 1000, 400, True, (), {"roundup": [], "limit": float("inf")}),
        peak=Peak(0, held.requested_bytes, held.requested_bytes + MIB, held.requested_bytes + 2 * MIB, 2 * GIB,
                  ("requested_bytes", "reserved_bytes"), held, "Step 3 goes from 10.00 MiB to 448.00 MiB."),
        heap=held,
        at="peak",
        oom=None,
        steps=StepFacts(8, "optimizer marks", tuple(n * MIB for n in range(100, 900, 100))),
        fragmentation=Fragmentation(900, 2 * GIB, 80 * MIB, 16 * MIB, 12, 0,
                                    (Pin(None, 1 * MIB, 3, 5 * MIB, 4), Pin(Place("a.py", 1, "f"), 2, 1, 3, 4)), (), True),
        leaks=(),
        ledger=(),
        findings=(finding(1), finding(2, fix=None), refuted()),
    )  # fmt: skip
    return replace(explanation, **changes)  # type: ignore[arg-type]


def failed(**changes: object) -> Explanation:
    """A run that ran out of memory, with more to say than one screen holds."""
    oom = OomVerdict(
        event=950,
        device=0,
        count=3,
        requested_bytes=600 * MIB,
        tried_bytes=602 * MIB,
        allocated_bytes=1 * GIB,
        reserved_bytes=2 * GIB,
        free_bytes=100 * GIB,
        largest_free_bytes=16 * MIB,
        limit_bytes=2 * GIB,
        wall="process_limit",
        cause="fragmentation",
        short_by_bytes=600 * MIB,
        place=Place(f"{LONG_FOLDER}/transformer.py", 256, "attention"),
        headline="1.28 GiB were free inside reserved memory, but in 195 holes of at most 16.00 MiB: 600.00 MiB did not fit",
        unknowns=(
            "The limit itself is not in a snapshot.",
            "Who else used the device is not known.",
        ),
    )
    facts = replace(run().recording, complete=False, missing=("the events before number 12,000",))
    explanation = run(
        recording=facts,
        heap=heap(950),
        at="oom",
        oom=oom,
        leaks=(LEAK,),
        findings=(*(finding(n) for n in range(6)), finding(7, fix=None), refuted(), refuted()),
    )
    return replace(explanation, **changes)  # type: ignore[arg-type]


def error_text() -> Explanation:
    """All that an error's text tells."""
    oom = failed().oom
    assert oom is not None
    oom = replace(
        oom,
        event=None,
        requested_bytes=None,
        largest_free_bytes=None,
        cause=None,
        place=None,
        count=1,
    )
    ledger = (
        LedgerRow("pytorch_allocated", 1 * GIB, "exact"),
        LedgerRow("this_process_other", 1 * GIB, "inferred"),
        LedgerRow("free", 100 * GIB, "exact"),
        LedgerRow("unknown", 3 * GIB, "unknown"),
    )
    facts = RecordingFacts(
        "train.log", None, None, 0, 0, False, ("a recording: this is an error's text",), {}
    )
    return Explanation(
        facts,
        None,
        None,
        "oom",
        oom,
        StepFacts(0, None, ()),
        None,
        (),
        ledger,
        (finding(1), refuted()),
    )


EVIL = "a[bold]b\n\x1b[31mred\u202e|`x` <b> @someone"


def hostile() -> Explanation:
    """Names with markup, newlines, escape sequences and writing direction marks in every place
    that has a name.
    """
    held = heap()
    place = Place(EVIL, 7, EVIL)
    held = replace(
        held,
        by_line=(LineBytes(place, held.requested_bytes, 3, 0, EVIL),),
        unattributed_bytes=0,
        by_category={EVIL: CategoryBytes(held.requested_bytes, "likely")},
        by_phase={EVIL: held.requested_bytes},
        by_module={EVIL: 5},
        by_region={EVIL: 5},
        by_stack=(stack_of((Frame(EVIL, 1, EVIL), Frame(EVIL, 2, EVIL)), held.requested_bytes, 1),),
    )
    said = replace(finding(), title=EVIL, evidence=(EVIL,), fix=EVIL, place=place)
    peak = run().peak
    assert peak is not None
    peak = replace(peak, heap=held, shape=EVIL)
    facts = replace(run().recording, source=EVIL, missing=(EVIL,), complete=False)
    leak = replace(LEAK, place=place, fix=EVIL)
    return run(
        recording=facts,
        peak=peak,
        heap=held,
        findings=(said, replace(said, fix=None)),
        leaks=(leak,),
    )


def nothing() -> Explanation:
    """A recording without a device."""
    facts = RecordingFacts("empty.pickle", None, None, 0, 0, True, (), {})
    return Explanation(facts, None, None, "peak", None, StepFacts(0, None, ()), None, (), (), ())


EVERY = {"run": run, "failed": failed, "text": error_text, "hostile": hostile, "nothing": nothing}
