"""The story of leaks: the answer, who keeps each leak, the fix, what it rests on, what is next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vramlens.ground.verdict import Verdict
from vramlens.report.document import (
    Blank,
    Command,
    Cut,
    Document,
    Figure,
    Figures,
    Fit,
    Form,
    Heading,
    Items,
    Part,
    Sentences,
    cut_whole,
)
from vramlens.report.leaks.leak_claim import (
    LeakParagraph,
    context_claim,
    paragraph_of,
    sampled_claim,
)
from vramlens.report.text import DIM
from vramlens.report.wording import and_more, at_place, place_name, quoted, steps_found_by, visible
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from vramlens.analyses.explanation import RecordingFacts
    from vramlens.analyses.leaks.recorded_leak import RecordedLeak
    from vramlens.analyses.leaks.recorded_leaks import DeviceLeaks, RecordedLeakReport

DEFAULT_TOP = 5
_MOST_DISMISSED = 4
_CUT_NOTES, _CUT_DISMISSED, _CUT_EVIDENCE, _CUT_CLAIMS = 3, 4, 5, 7
"""The steps at which a part goes where there is little room; the dismissed get fewer before."""


def _growth_claims(
    report: RecordedLeakReport, shown: Sequence[RecordedLeak]
) -> list[LeakParagraph]:
    """The claims; what is surer stands first, whether events or samples show it."""
    sure = [paragraph_of(report, leak) for leak in shown if leak.sure]
    sampled = [sampled_claim(finding) for use in report.devices for finding in use.findings]
    unsure = [paragraph_of(report, leak) for leak in shown if not leak.sure]
    return [*sure, *sampled, *unsure]


def _is_growing(leak: RecordedLeak) -> bool:
    """True for a leak that matters; a context does not grow."""
    return leak.verdict != Verdict.NOT_A_PROBLEM and leak.kind != "context" and not leak.is_small


def leaks_document(report: RecordedLeakReport, top: int | None = None) -> Document:
    """The answer in parts, ``top`` leaks of it (5 by default).

    On a terminal, where nothing says how many, it has as much as there is room for: what is not a leak
    goes first, then what a verdict rests on, then the last leaks.
    """
    growing = [leak for leak in report.leaks if _is_growing(leak)]
    shown = growing[: top or DEFAULT_TOP]
    growth = _growth_claims(report, shown)
    contexts = [context_claim(leak) for leak in report.leaks if leak.kind == "context"]
    claims = [*growth, *contexts]
    why, command = _next(report, growing)
    return Document(
        (
            *([] if growth else [Heading(_nothing(report))]),
            *_claim_parts(claims, is_headed=not growth),
            *_more_parts(len(growing) - len(shown), len(claims)),
            Blank(),
            *_dismissed_parts(report, top or _MOST_DISMISSED),
            Sentences(
                (*_small(report), *_judged_by(report)), style=DIM, cuts=cut_whole(_CUT_NOTES)
            ),
            Sentences(tuple(_unknown(report))),
            Command(why, (visible(command),), is_broken=True),
        ),
        Fit.TERMINALS if top is None else Fit.NOWHERE,
    )


def _claim_parts(claims: Sequence[LeakParagraph], *, is_headed: bool) -> Iterator[Part]:
    """Yields the leaks; ``is_headed`` where a headline stands above them."""
    for index, claim in enumerate(claims):
        from_the_end = len(claims) - 1 - index
        cuts = cut_whole(_CUT_CLAIMS + from_the_end) if index else ()
        if index or is_headed:
            yield Blank(cuts=cuts)
        yield Heading(claim.headline, level=2, tone=claim.tone, cuts=cuts)
        yield Sentences((claim.keeper,), cuts=cuts)
        if claim.fix:
            yield Sentences((claim.fix,), "Fix: ", cuts=cuts)
        # The last note says why no more is certain.
        last_note = Cut(_CUT_EVIDENCE, {"texts": claim.notes[-1:]})
        yield Items(claim.notes, style=DIM, cuts=(last_note, *cut_whole(_CUT_EVIDENCE + 1), *cuts))


def _more_parts(unshown: int, claims: int) -> Iterator[Part]:
    """How many leaks are left out, by ``top`` or for want of room."""
    texts = [
        and_more(unshown + gone_claims, "leak", f"--top {unshown + claims}")
        for gone_claims in range(max(1, claims))
    ]
    cuts = tuple(
        Cut(_CUT_CLAIMS + index, {"texts": (text,), "shown": True})
        for index, text in enumerate(texts[1:])
    )
    is_cut = bool(unshown)
    yield Sentences((texts[0],), forms=Form.TEXT, shown=is_cut, cuts=cuts)
    yield Sentences((texts[0],), forms=Form.MARKDOWN, shown=is_cut)


def _dismissed_parts(report: RecordedLeakReport, top: int) -> Iterator[Part]:
    """Yields what only seems to leak: bytes, where, why."""
    stable = [leak for leak in report.leaks if leak.verdict == Verdict.NOT_A_PROBLEM]
    if not stable:
        return
    title = "Not leaks (this memory stays, but does not grow):"
    rows = tuple(_dismissed(report, stable))[:top]
    fewer = tuple(Cut(step, {"rows": rows[: 3 - step]}) for step in (1, 2))
    fewer_words = tuple(
        Cut(step, _and_more_dismissed(len(stable), min(3 - step, len(rows)))) for step in (1, 2)
    )
    hidden = len(stable) - len(rows)
    yield Heading(title, level=2, forms=Form.TEXT, cuts=cut_whole(_CUT_DISMISSED))
    yield Figures(rows, forms=Form.TEXT, cuts=(*fewer, *cut_whole(_CUT_DISMISSED)))
    yield Sentences(
        (and_more(hidden, "place", f"--top {len(stable)}"),),
        is_aside=True,
        forms=Form.TEXT,
        shown=hidden > 0,
        cuts=(*fewer_words, Cut(_CUT_DISMISSED, _only_counted(len(stable)))),
    )
    items = tuple(f"{row.text}: {row.words}" for row in rows)
    yield Items(items, title=title, forms=Form.MARKDOWN)


def _dismissed(report: RecordedLeakReport, stable: Sequence[RecordedLeak]) -> Iterator[Figure]:
    """Yields bytes, where and why of memory that stays, largest first."""
    for leak in sorted(stable, key=lambda leak: -leak.bytes):
        where = place_name(leak.place) if leak.place is not None else "PyTorch's cache"
        if len(report.devices) > 1:
            where = f"{where}, device {leak.device}"
        yield Figure(format_size(leak.bytes), f"{where}: {visible(leak.reason)}")


def _and_more_dismissed(count: int, shown: int) -> dict[str, object]:
    """What becomes of the line below those that are shown."""
    hidden = count - shown
    return {"texts": (and_more(hidden, "place", f"--top {count}"),), "shown": hidden > 0}


def _only_counted(count: int) -> dict[str, object]:
    """What becomes of that line where none of them is shown."""
    words = f"Not leaks: {counted(count, 'place')} whose memory stays (--top {count} shows them)."
    return {"texts": (words,), "shown": True, "is_aside": False}


def _nothing(report: RecordedLeakReport) -> str:
    """The answer where nothing leaks, and how far it is certain."""
    from vramlens.analyses.leaks.growth import ENOUGH_STEPS

    if not report.devices:
        return "Nothing to check: the recording has no GPU memory and no events."
    longest = max(report.devices, key=lambda device: device.steps)
    if not longest.steps:
        return (
            "Cannot tell: the recording shows no steps. A leak is memory that outlives the step it "
            "was made in."
        )
    recorded = f"{counted(longest.steps, 'step')} recorded"
    if longest.needs_steps is not None:
        if any(device.failed for device in report.devices):
            return (
                f"Too few steps to tell: {recorded} before memory ran out. Run it with --leaks,"
                " which shows what is kept."
            )
        more = counted(longest.needs_steps, "more step")
        return (
            f"Too few steps to tell: {recorded}. {more} would show growth; about {ENOUGH_STEPS} in"
            " total make it certain."
        )
    if longest.inside_one_call:
        return (
            "Cannot tell: the steps are only a repeating pattern inside one module call, so they"
            " may be the layers of a single pass."
        )
    if longest.judged_steps < ENOUGH_STEPS:
        nothing = "Nothing that matters grows" if report.small else "Nothing grows"
        return f"{nothing} in the {recorded}. About {ENOUGH_STEPS} steps are needed to be certain."
    if report.small:
        return f"No leak that matters ({recorded})."
    return f"No leak: nothing grows with every step ({recorded})."


def _small(report: RecordedLeakReport) -> Iterator[str]:
    """One quiet line on what grows without ever mattering."""
    small = report.small
    if not small:
        return
    largest = max(small, key=lambda leak: leak.bytes_per_step)
    where = at_place(largest.place)
    opening = "Too small to matter:"
    if len(small) > 1:
        opening = f"{len(small):,} places keep a little. The largest:"
    yield f"{opening} {largest.rate_text}{where} (--at-least 0 shows it)."


def _judged_by(report: RecordedLeakReport) -> Iterator[str]:
    """Yields by how many steps each device was judged, and what was not."""
    has_several = len(report.devices) > 1
    for device in report.devices:
        if device.steps:
            yield f"{_device_label(device, has_several=has_several)}{_steps_words(device)}"
        if device.wrapped:
            yield (
                f"The first events of device {device.device} were overwritten, so memory from"
                " before them was not checked."
            )


def _device_label(device: DeviceLeaks, *, has_several: bool) -> str:
    if device.device < 0:
        return "Pinned host memory: "
    return f"Device {device.device}: " if has_several else ""


def _steps_words(device: DeviceLeaks) -> str:
    """The steps, in the words of ``vramlens explain``, and the moment of the verdict."""
    steps = counted(device.steps, "step")
    if device.source is not None:
        steps += f", {steps_found_by(device.source)}"
    if device.inside_one_call:
        return f"{counted(device.steps, 'repetition')}, found by requests that repeat."
    if not device.judged_steps:
        return f"{steps}."
    moment = "before the last"
    if device.failed_step is not None:
        moment = f"before memory ran out in step {device.failed_step}"
    judges = "the one step"
    if device.judged_steps != 1:
        judges = f"the {device.judged_steps:,} steps"
    return f"{steps}. Checked {judges} {moment}. Step 0 is the first recorded."


def _unknown(report: RecordedLeakReport) -> Iterator[str]:
    leaking = {leak.device for leak in report.sure if leak.taken_per_step}
    for device in report.devices:
        is_open = device.prediction is None and device.failed_step is None
        if device.device in leaking and is_open:
            yield (
                "When memory will run out is unknown: the recording does not contain the device's "
                "size. Pass it with --total 80GiB."
            )
            break
    if report.devices and not any(map(_has_steps, report.devices)):
        yield (
            "To mark steps, call vramlens.step() at the end of each step, or record with"
            " `vramlens run`, which sees optimizers."
        )
    if report.recording.missing:
        yield f"Missing from the recording: {visible('; '.join(report.recording.missing))}."


def _has_steps(device: DeviceLeaks) -> bool:
    return bool(device.steps) and not device.inside_one_call


def _next(report: RecordedLeakReport, growing: Sequence[RecordedLeak]) -> tuple[str, str]:
    """Why, and the command."""
    source = quoted(report.recording.source)
    program = program_words(report.recording)
    if growing:
        return _step_after_leak(growing[0], source, program)
    if any(device.findings for device in report.devices):
        return "find out what keeps it", f"vramlens run --leaks {program}"
    if any(device.failed for device in report.devices):
        return "find out why memory ran out", f"vramlens explain {source}"
    if any(device.needs_steps is None and _has_steps(device) for device in report.devices):
        return "see what uses the memory at its peak", f"vramlens explain {source}"
    meta = report.recording.meta
    if meta.is_prediction:
        from vramlens.analyses.leaks.growth import ENOUGH_STEPS

        why = "predict more steps, which the script must run"
        return why, predict_again(meta.command, ENOUGH_STEPS + 2)
    # Where something was recorded, that is not lost.
    output = " -o again.vram" if report.devices else ""
    return "record more steps", f"vramlens run{output} {program}"


def _step_after_leak(leak: RecordedLeak, source: str, program: str) -> tuple[str, str]:
    if leak.owner is not None:
        why = "make the change, record again and check that the growth is gone"
        return why, f"vramlens run -o fixed.vram {program} && vramlens diff {source} fixed.vram"
    growth = f"the {leak.rate_text}" if leak.bytes_per_step else "it"
    return f"find out what keeps {growth}", f"vramlens run --leaks {program}"


def program_words(recording: RecordingFacts) -> str:
    """The program that was recorded and its arguments, as ``vramlens run`` takes them."""
    words = list(recording.meta.command)
    if words and words[0].rsplit("/", 1)[-1].startswith("python"):
        words = words[1:]
    if recording.meta.is_prediction:
        _, words = _parted(words)
    return visible(shlex.join(words)) if words else "YOUR_SCRIPT.py"


def predict_again(command: Sequence[str], steps: int) -> str:
    """A prediction's command for so many steps."""
    options, script = _parted(command)
    if not script:
        return f"vramlens predict --steps {steps} YOUR_SCRIPT.py"
    if "--steps" in options:
        at = options.index("--steps")
        del options[at : at + 2]
    dashes = ["--"] if any(word.startswith("-") for word in script[1:]) else []
    words = ["--steps", str(steps), *options, script[0], *dashes, *script[1:]]
    return visible(f"vramlens predict {shlex.join(words)}")


def _parted(command: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options of a prediction's command, which all have a value, and the script with its
    arguments; neither where a program that the recording does not name called predict.
    """
    words = list(command[2:])
    at = 0
    while at < len(words) and words[at].startswith("--"):
        at += 2
    script = words[at:]
    if script[1:2] == ["--"]:
        del script[1]
    return words[:at], script
