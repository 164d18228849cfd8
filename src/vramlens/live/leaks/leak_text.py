"""Reports as text: the verdict first, then who keeps it and where, then what to change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vramlens.foreign_text import text_of
from vramlens.ground.verdict import Verdict
from vramlens.ground.wrapped_lines import WIDTH, wrapped_lines
from vramlens.leak.claim import claim_of, place_text, with_article
from vramlens.leak.leak import FAR_STEPS
from vramlens.live.leaks.leak_report import (
    UNSEEN_CODE,
    Gone,
    LeakReport,
    LiveLeak,
    Unexplained,
)
from vramlens.units import counted, format_size

_MOST_SHOWN = 10
"""Leaks, and look-alikes: they take three to ten lines each, and the first is the one to mend."""
_MANY_STEPS = 50
"""From which on more of them rarely change a verdict: what is possible then depends on what the program
does with it.
"""
_COUNTED = {
    "stream": "blocks that belong to side streams",
    "pool": "private pools",
    "pinned": "blocks of pinned host memory",
    "external": "bytes outside of PyTorch",
    "other": "allocated blocks",
    "cache": "allocated blocks",
}


def report_text(report: LeakReport, width: int = WIDTH) -> str:
    """A whole report, in lines of at most so many columns where its words allow."""
    return text_of(line for text in _texts(report) for line in wrapped_lines(text, width))


def _texts(report: LeakReport) -> Iterator[str]:
    """Yields its lines before they are fitted."""
    leaks, possible = report.found, report.possible
    if not leaks:
        yield from _no_leak_lines(report, possible)
    yield from _all_leak_lines(report)
    yield from _look_alike_lines(report)
    if report.unexplained is not None and (leaks or possible):
        yield f"Besides that, {_unexplained_text(report.unexplained, report.steps)}."
    for note in report.notes:
        yield f"Note: {note}."
    yield from _next_step_lines(report, possible)


def _next_step_lines(report: LeakReport, possible: Sequence[LiveLeak]) -> Iterator[str]:
    if report.found:
        edit = _edit_text(report.found[0])
        advice = f"{edit} and run again; this leak should no longer appear."
    elif possible and not report.missing_steps:
        more = " More steps give a clearer answer." if report.steps < _MANY_STEPS else ""
        edit = _edit_text(possible[0])
        advice = f"if {_name(possible[0])} should not keep them, {edit} and run again.{more}"
    else:
        return
    yield ""
    yield f"Next: {advice}"


def _all_leak_lines(report: LeakReport) -> Iterator[str]:
    leaks = report.found
    for number, leak in enumerate(leaks[:_MOST_SHOWN]):
        if number:
            yield ""
        yield from _leak_lines(leak, report)
    if len(leaks) > _MOST_SHOWN:
        yield f"... and {counted(len(leaks) - _MOST_SHOWN, 'smaller leak')}"


def _look_alike_lines(report: LeakReport) -> Iterator[str]:
    unsure_leaks = [leak for leak in report.leaks if not leak.sure]
    look_alikes = [leak for leak in unsure_leaks if not leak.is_small]
    if unsure_leaks:
        yield ""
    for leak in look_alikes[:_MOST_SHOWN]:
        yield from _other_lines(leak)
    small = [leak for leak in unsure_leaks if leak.is_small]
    if small:
        largest = max(small, key=lambda leak: leak.bytes_per_step)
        opening = "Too small to matter:"
        if len(small) > 1:
            opening = f"{len(small):,} places keep a little. The largest:"
        yield f"{opening} {_name_and_place(largest)}, {largest.rate_text}."


def _no_leak_lines(report: LeakReport, possible: Sequence[LiveLeak]) -> Iterator[str]:
    if report.missing_steps:
        has = "has" if report.steps == 1 else "have"
        are = "is" if report.missing_steps == 1 else "are"
        yield (
            f"Too few steps to tell: {counted(report.steps, 'step')} {has} ended;"
            f" {counted(report.missing_steps, 'more step')} {are} needed to tell growth from "
            "warm-up."
        )
        return
    ended = " now that the program has ended" if report.has_ended else ""
    live = f"{format_size(report.live_bytes)} in use by tensors{ended}."
    watched = f"{counted(report.steps, 'step')} watched, {live}"
    if possible:
        answer = _possible_text(possible)
    elif report.gone is not None:
        answer = _gone_text(report.gone)
    elif report.unexplained is not None:
        answer = f"Cannot tell: {_unexplained_text(report.unexplained, report.steps)}."
    else:
        yield f"No leak: {watched}"
        return
    yield answer
    yield f"  {watched}"


def _leak_lines(leak: LiveLeak, report: LeakReport) -> Iterator[str]:
    unseen = f"{_name(leak)} of {leak.device}: no tensor and no reference explains them"
    claim = claim_of(leak, unseen=unseen, end=_end(leak, report.headroom_bytes))
    yield claim.headline
    for line in filter(None, (claim.owner, *claim.facts, *claim.notes)):
        yield f"  {line}"
    if claim.fix:
        yield f"  Fix: {claim.fix}"


def _end(leak: LiveLeak, headroom_bytes: int | None) -> str:
    """When the GPU's memory will be full."""
    is_on_gpu = leak.device.startswith(("cuda", "xpu"))
    if headroom_bytes is None or leak.bytes_per_step <= 0 or not is_on_gpu:
        return ""
    steps_left = headroom_bytes // leak.bytes_per_step
    if steps_left > FAR_STEPS:
        return f"; room for more than {FAR_STEPS:,} steps"
    return f"; out of memory in about {counted(steps_left, 'step')}"


def _other_lines(leak: LiveLeak) -> Iterator[str]:
    reason = leak.reason or "".join(leak.evidence[-1:])
    amount = f"{format_size(leak.bytes_per_step)} per step"
    if leak.verdict == Verdict.NOT_A_PROBLEM and leak.bytes:
        amount = format_size(leak.bytes)  # what only filled keeps nothing of each step
    yield f"{leak.verdict}: {_name_and_place(leak)}, {amount}: {reason}"
    if leak.fix:
        yield f"  Fix: {leak.advice}"


def _possible_text(possible: Sequence[LiveLeak]) -> str:
    first = possible[0]
    owner, rate = first.owner, f"{format_size(first.bytes_per_step)} per step"
    kind = "" if owner is None else f", {with_article(owner.kind)}"
    if first.kind == "cycle":
        kind, rate = ", a reference cycle", f"{rate} wait for Python's collector"
    largest = "" if len(possible) == 1 else "the largest is "
    name = f"{largest}{_name_and_place(first)}{kind}"
    return f"No leak proven, {len(possible):,} possible: {name}: {rate}"


def _gone_text(gone: Gone) -> str:
    if not gone.function:
        remedy = "keep the model and the trainer in variables of the script, and run again"
    elif gone.function.isidentifier():
        remedy = f"call report() inside {gone.function}()"
    else:
        remedy = "call report() before it is freed"
    return (
        f"Cannot tell: memory grew {format_size(gone.bytes_per_step)} per step until step"
        f" {gone.step:,}. Then the program freed all of it, so what kept it is unknown. To find"
        f" out, {remedy}."
    )


def _unexplained_text(growth: Unexplained, steps: int) -> str:
    if growth.first_step > steps:
        return (
            f"{format_size(growth.bytes)} came after step {steps:,}, the last that was watched. To"
            " watch what comes then, call vramlens.step() in its loop"
        )
    where = (
        "in many places, none of which grows steadily by itself"
        if growth.is_reached
        else "with no owner found"
    )
    return (
        f"{format_size(growth.bytes)} grew {where}: {format_size(growth.bytes_per_step)} per "
        "step from step"
        f" {growth.first_step:,} to {growth.last_step:,}"
    )


def _name(leak: LiveLeak) -> str:
    return leak.owner.name if leak.owner is not None else _COUNTED.get(leak.kind or "", "memory")


def _name_and_place(leak: LiveLeak) -> str:
    if leak.owner is None or not leak.owner.line:
        return _name(leak)
    return f"{_name(leak)} ({place_text(leak.owner.file, leak.owner.line)})"


def _edit_text(leak: LiveLeak) -> str:
    """What to edit: ``change train.py:41``."""
    owner = leak.owner
    if owner is None:
        return "change the line above"
    if owner.name == UNSEEN_CODE:
        return f"find the {owner.name} that keeps them"
    return f"change {place_text(owner.file, owner.line) if owner.line else owner.name}"
