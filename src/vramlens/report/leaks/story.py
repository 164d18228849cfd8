"""The story of leaks: the answer, who keeps each leak, the fix, what it rests on, what is next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramlens.ground.verdict import Verdict
from vramlens.report.document import (
    Blank,
    Command,
    Cut,
    Document,
    Figure,
    Figures,
    Form,
    Heading,
    Items,
    Part,
    Sentences,
    gone,
)
from vramlens.report.markdown import markdown_of
from vramlens.report.screen import room_of
from vramlens.report.text import DIM, print_document
from vramlens.report.wording import place_name, quoted, visible
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from rich.console import Console

    from vramlens.analyses.explanation import RecordingFacts
    from vramlens.analyses.finding import Finding
    from vramlens.analyses.leaks.growth import Leak
    from vramlens.analyses.leaks.leaks import DeviceLeaks, LeakReport

DEFAULT_TOP = 5
_MOST_DISMISSED = 4
_MOST_CHAIN = 6
_NOTES_GO, _DISMISSED_GO, _EVIDENCE_GOES, _CLAIMS_GO = 3, 4, 5, 7
"""The steps at which a part goes where there is little room; the dismissed get fewer before."""


@dataclass(frozen=True, slots=True)
class LeakClaim:
    """One leak: what leaks how fast, who keeps it, what to do, and what that rests on."""

    headline: str
    keeper: str
    fix: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeakStory:
    """All of the answer.

    Attributes:
        headline: where nothing leaks: that, and how far it is certain; else None.
        claims: the leaks.
        more: how many are left out.
        dismissed: what only seems to leak: bytes, where, why.
        notes: what it was judged by.
        unknown: what cannot be known from the input, and what would tell it.
        why, command: the next step.
    """

    headline: str | None
    claims: tuple[LeakClaim, ...]
    more: int
    dismissed: tuple[tuple[str, str, str], ...]
    notes: tuple[str, ...]
    unknown: tuple[str, ...]
    why: str
    command: str


def leak_story(report: LeakReport, top: int | None = None) -> LeakStory:
    """What to say; ``top`` leaks of it (5 by default)."""
    contexts = [leak for leak in report.leaks if leak.kind == "context"]  # these do not grow
    growing = [
        leak
        for leak in report.leaks
        if leak.verdict != Verdict.NOT_A_PROBLEM and leak not in contexts and not leak.is_small
    ]
    shown = growing[: top or DEFAULT_TOP]
    several = len(report.devices) > 1
    # What is surer stands first, whether events or samples show it.
    claims = [_claim(report, leak, several) for leak in shown if leak.sure]
    claims += [_sampled(finding) for one in report.devices for finding in one.findings]
    claims += [_claim(report, leak, several) for leak in shown if not leak.sure]
    nothing = None if claims else _nothing(report)
    claims += [_claim(report, leak, several) for leak in contexts]
    why, command = _next(report, growing)
    return LeakStory(
        headline=nothing,
        claims=tuple(claims),
        more=len(growing) - len(shown),
        dismissed=tuple(_dismissed(report, several, top or _MOST_DISMISSED)),
        notes=(*_small(report), *_judged_by(report)),
        unknown=tuple(_unknown(report)),
        why=why,
        command=visible(command),
    )


def render_leaks(report: LeakReport, console: Console, top: int | None = None) -> None:
    """Prints the answer of ``vramlens leaks``; on a terminal as much of it as one screen has room
    for.

    Args:
        top: how many leaks to show, in full.
    """
    room = room_of(console) if console.is_terminal and top is None else None
    print_document(leaks_document(leak_story(report, top)), console, room)


def leaks_to_markdown(report: LeakReport, top: int | None = None) -> str:
    """The answer of ``vramlens leaks``; ``top`` leaks of it (5 by default)."""
    return markdown_of(leaks_document(leak_story(report, top)))


def leaks_document(story: LeakStory) -> Document:
    """The story in parts; what is no leak goes first, then what a verdict rests on, then the last
    leaks.
    """
    return Document(
        (
            *([Heading(story.headline)] if story.headline is not None else []),
            *_claim_parts(story),
            *_more_parts(story),
            Blank(),
            *_dismissed_parts(story),
            Sentences(
                ("… --markdown shows all",),
                forms=Form.TEXT,
                shown=False,
                cuts=(Cut(1, {"shown": True}),),
            ),
            Sentences(story.notes, style=DIM, cuts=gone(_NOTES_GO)),
            Sentences(story.unknown),
            Command(story.why, (story.command,), is_broken=True),
        )
    )


def _claim_parts(story: LeakStory) -> Iterator[Part]:
    for index, claim in enumerate(story.claims):
        from_the_end = len(story.claims) - 1 - index
        cuts = gone(_CLAIMS_GO + from_the_end) if index else ()
        if index or story.headline is not None:
            yield Blank(cuts=cuts)
        yield Heading(claim.headline, level=2, cuts=cuts)
        yield Sentences((claim.keeper,), cuts=cuts)
        if claim.fix:
            yield Sentences((claim.fix,), "Fix: ", cuts=cuts)
        # The last note says why no more is certain.
        last_note = Cut(_EVIDENCE_GOES, {"texts": claim.notes[-1:]})
        yield Items(claim.notes, style=DIM, cuts=(last_note, *gone(_EVIDENCE_GOES + 1), *cuts))


def _more_parts(story: LeakStory) -> Iterator[Part]:
    """How many leaks are left out, by ``top`` or for want of room."""
    total = story.more + len(story.claims)
    texts = [
        f"{story.more + gone_claims:,} more: --top {total} shows them."
        for gone_claims in range(max(1, len(story.claims)))
    ]
    cuts = tuple(
        Cut(_CLAIMS_GO + index, {"texts": (text,), "shown": True})
        for index, text in enumerate(texts[1:])
    )
    is_cut = bool(story.more)
    yield Sentences((texts[0],), forms=Form.TEXT, shown=is_cut, cuts=cuts)
    yield Sentences((f"{story.more:,} more are left out.",), forms=Form.MARKDOWN, shown=is_cut)


def _dismissed_parts(story: LeakStory) -> Iterator[Part]:
    if not story.dismissed:
        return
    title = "No leak, although it stays:"
    rows = tuple(Figure(size, f"{where}: {why}") for size, where, why in story.dismissed)
    fewer = tuple(Cut(step, {"rows": rows[: 3 - step]}) for step in (1, 2))
    yield Heading(title, level=2, forms=Form.TEXT, cuts=gone(_DISMISSED_GO))
    yield Figures(rows, forms=Form.TEXT, cuts=(*fewer, *gone(_DISMISSED_GO)))
    items = tuple(f"{row.text}: {row.words}" for row in rows)
    yield Items(items, title=title, forms=Form.MARKDOWN)


def _claim(report: LeakReport, leak: Leak, several: bool) -> LeakClaim:
    device = next((one for one in report.devices if one.device == leak.device), report.devices[0])
    rate = f"{format_size(leak.bytes_per_step)} a step"
    where = (
        " of pinned host memory"
        if leak.device < 0
        else f" on device {leak.device}"
        if several
        else ""
    )
    what = f"{rate}{where}, {counted(leak.steps, 'step')}, {format_size(leak.bytes)} so far"
    if not leak.steps:  # no steps are known
        what = f"{format_size(leak.bytes)}{where} over the recording"
    if leak.kind == "external":
        what += ", outside PyTorch"
    if leak.kind == "context":
        return LeakClaim(
            f"IN VAIN, but not growing: {format_size(leak.bytes)} on device {leak.device}, which PyTorch does not use",
            "No tensor holds it: it is a context (the driver's and the libraries' memory of this process).",
            visible(leak.fix or ""),
            (*map(visible, leak.evidence), f"not sure: {leak.reason}"),
        )
    if leak.sure:
        headline = f"LEAK {leak.verdict}: {what}"
    else:
        needs = (
            f"; {counted(leak.needs_steps, 'more step')} would tell, or --leaks"
            if leak.needs_steps
            else ""
        )
        headline = f"GROWING, but no leak proven: {what}{needs}"
    if leak is device.leaks[0]:
        headline += _end(device, leak)
    notes = [*leak.evidence]
    if leak.low != leak.high:
        notes[:0] = [
            f"{format_size(leak.low)} to {format_size(leak.high)} a step, over half of the steps or more"
        ]
    if leak.reason:
        notes.append(f"{'not proven' if leak.sure else 'not sure'}: {leak.reason}")
    return LeakClaim(headline, _keeper(leak), visible(leak.fix or ""), tuple(map(visible, notes)))


def _end(device: DeviceLeaks, leak: Leak) -> str:
    from vramlens.analyses.leaks.leaks import when

    if device.failed_step is not None:
        return f"; memory ran out in step {device.failed_step}"
    return f"; {when(device.prediction)}" if device.prediction is not None and leak.sure else ""


def _keeper(leak: Leak) -> str:
    line = place_name(leak.place) if leak.place is not None else None
    owner = leak.owner
    if owner is not None:
        at = f" ({visible(owner.file)}:{owner.line or '?'})" if owner.file else ""
        chain = " > ".join(map(visible, owner.chain[-_MOST_CHAIN:]))
        asked = f" {line} asked for it." if line else ""
        through = f" Held by {chain}." if chain else ""
        return f"{visible(owner.name)}, a {visible(owner.kind or 'holder')}{at}, keeps it.{asked}{through}"
    if leak.kind == "external":
        return "No tensor holds it: a library (NCCL, cuBLAS), a context or another process does."
    if leak.kind == "stream" and leak.allocations_per_step:
        return f"{line or 'Some line'} asked for it and gave it up; another stream, steps behind, still uses it."
    if leak.kind in ("stream", "pool"):
        return f"{line or 'Some line'} asked for it there; nothing keeps it, but no other stream or pool can use it."
    if line is None:
        return "No line is known: the recording has no Python frames for it. It cannot name what keeps it either."
    return f"{line} asks for it; the recording cannot name what keeps it: run with --leaks."


def _sampled(finding: Finding) -> LeakClaim:
    """Growth that only samples show."""
    label = (
        "LEAK likely"
        if finding.verdict in (Verdict.PROVEN, Verdict.LIKELY)
        else "GROWING, but no leak proven"
    )
    keeper = (
        f"{place_name(finding.place)} asks for it."
        if finding.place is not None
        else "The samples name no line of it."
    )
    title = finding.title[:1].lower() + finding.title[1:]
    evidence = tuple(map(visible, finding.evidence))
    return LeakClaim(f"{label}: {visible(title)}", keeper, visible(finding.fix or ""), evidence)


def _nothing(report: LeakReport) -> str:
    from vramlens.analyses.leaks.growth import ENOUGH_STEPS

    if not report.devices:
        return "Nothing to judge: the recording holds no GPU memory and no events."
    one = max(report.devices, key=lambda device: device.steps)
    if not one.steps:
        return "Cannot tell: the recording shows no steps, and a leak is what outlives the step it was made in."
    recorded = f"{counted(one.steps, 'step')} recorded"
    if one.needs_steps is not None:
        more = counted(one.needs_steps, "more step")
        return f"Too few steps to tell: {recorded}; {more} would show growth, some {ENOUGH_STEPS} in all make it sure."
    if one.inside_one_call:
        return (
            "Cannot tell: only a repeating pattern tells steps apart, and all of it lies inside of one module's call:"
            " it may be the layers of a single pass."
        )
    if one.judged_steps < ENOUGH_STEPS:
        what = "Nothing that matters grows" if report.small else "Nothing grows"
        return f"{what}, with {recorded}; some {ENOUGH_STEPS} are needed to be sure."
    if report.small:
        return f"No leak that matters: {recorded}."
    return f"No leak: {recorded}, and nothing that grows with every step."


def _dismissed(report: LeakReport, several: bool, most: int) -> Iterator[tuple[str, str, str]]:
    rows = sorted(
        (leak for leak in report.leaks if leak.verdict == Verdict.NOT_A_PROBLEM),
        key=lambda leak: -leak.bytes,
    )
    for leak in rows[:most]:
        where = place_name(leak.place) if leak.place is not None else "PyTorch's cache"
        yield (
            format_size(leak.bytes),
            f"{where}, device {leak.device}" if several else where,
            visible(leak.reason),
        )


def _small(report: LeakReport) -> Iterator[str]:
    """One quiet line on what grows without ever mattering."""
    small = report.small
    if not small:
        return
    largest = max(small, key=lambda leak: leak.bytes_per_step)
    where = f" at {place_name(largest.place)}" if largest.place is not None else ""
    many = (
        f"{len(small):,} places keep a little, at most"
        if len(small) > 1
        else "Too small to matter:"
    )
    yield f"{many} {format_size(largest.bytes_per_step)} a step{where}; --at-least 0 shows it."


def _judged_by(report: LeakReport) -> Iterator[str]:
    several = len(report.devices) > 1
    for one in report.devices:
        if one.steps:
            which = (
                "Pinned host memory: "
                if one.device < 0
                else f"Device {one.device}: "
                if several
                else ""
            )
            # The same words as those of `vramlens explain`.
            found = f"{which}{counted(one.steps, 'step')}, found by {one.source}"
            if one.inside_one_call or not one.judged_steps:
                yield f"{found}."
                continue
            moment = (
                f"memory ran out, in step {one.failed_step}"
                if one.failed_step is not None
                else "the last began"
            )
            before = (
                "by the one before it"
                if one.judged_steps == 1
                else f"by the {one.judged_steps:,} before it"
            )
            yield f"{found}; judged when {moment}, {before}. Step 0 is the first recorded."
        if one.wrapped:
            yield (
                f"The earliest events of device {one.device} are overwritten: what was made before them was not judged."
            )


def _unknown(report: LeakReport) -> Iterator[str]:
    sure = {leak.device for leak in report.sure if leak.taken_per_step}
    for one in report.devices:
        if one.device in sure and one.prediction is None and one.failed_step is None:
            yield "When memory runs out: the recording does not hold the device's memory; add --total 80GiB."
            break
    if report.devices and not any(one.steps and not one.inside_one_call for one in report.devices):
        yield "Steps: call vramlens.step() at the end of each, or record with `vramlens run`, which sees optimizers."
    if report.recording.missing:
        yield f"Missing in the recording: {visible('; '.join(report.recording.missing))}."


def _next(report: LeakReport, growing: Sequence[Leak]) -> tuple[str, str]:
    source = report.recording.source
    program = program_words(report.recording)
    if not growing and not any(one.findings for one in report.devices):
        failed = any(one.failed for one in report.devices)
        told = any(
            one.needs_steps is None and one.steps and not one.inside_one_call
            for one in report.devices
        )
        if failed:
            return "why memory ran out", f"vramlens explain {quoted(source)}"
        if not told:
            again = (
                " -o again.vram" if report.devices else ""
            )  # where something was recorded, that is not lost
            return "record more steps", f"vramlens run{again} {program}"
        return "who holds the memory at its peak", f"vramlens explain {quoted(source)}"
    if growing and growing[0].owner is not None:
        return "once it is changed, record again and see that the growth is gone", (
            f"vramlens run -o fixed.vram {program} && vramlens diff {quoted(source)} fixed.vram"
        )
    each = growing[0].bytes_per_step if growing else 0
    rate = f" the {format_size(each)} a step" if each else " it"
    return f"what keeps{rate}", f"vramlens run --leaks {program}"


def program_words(recording: RecordingFacts) -> str:
    """The program that was recorded and its arguments, as ``vramlens run`` takes them."""
    words = list(recording.meta.command) if recording.meta is not None else []
    if words and words[0].rsplit("/", 1)[-1].startswith("python"):
        words = words[1:]
    return visible(shlex.join(words)) if words else "YOUR_SCRIPT.py"
