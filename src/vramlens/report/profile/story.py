"""The story of a profile: what it says, in order, before it is laid out."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from vramlens.report.document import (
    Blank,
    Claim,
    Claims,
    Command,
    Cut,
    Document,
    Fit,
    Heading,
    Part,
    Sentences,
    cut_whole,
)
from vramlens.report.explain.holder_tables import DEFAULT_TOP
from vramlens.report.profile.profile_tables import gap_words, tables_of
from vramlens.report.wording import (
    plain,
    sentence,
    share,
    short_place_name,
    visible,
    visible_sentences,
    with_verdict,
)
from vramlens.units import counted, format_duration, format_size

if TYPE_CHECKING:
    from vramlens.analyses.finding import Finding
    from vramlens.analyses.profile.explained_profile import Profile
    from vramlens.analyses.profile.memory_events import MemoryReport


def profile_document(profile: Profile, top: int | None = None) -> Document:
    """The story in parts; the answer, what to do and what is next always stay.

    Args:
        top: how many rows of each table to show; by default as many as a screen has room for, and
            elsewhere 10.
    """
    opening = sentences(profile)
    blank = Blank(cuts=cut_whole(5))
    fewer_sentences = Cut(8, {"texts": opening[:2]})
    claim_cuts = (Cut(3, {"has_evidence": False}), Cut(4, {"top": 2}), Cut(6, {"top": 1}))
    claims = tuple(map(_claim, profile.findings))
    parts: list[Part] = [
        Heading(headline(profile)),
        Sentences(opening, cuts=(fewer_sentences,)),
    ]
    for table in tables_of(profile):
        parts += [blank, replace(table, top=DEFAULT_TOP if top is None else top)]
    parts += [
        blank,
        Claims(claims, "explain --top 10", cuts=claim_cuts),
        blank,
        Sentences(visible_sentences(profile.missing), "Missing: "),
        blank,
        next_command(profile),
    ]
    return Document(tuple(parts), Fit.EVERYWHERE if top is None else Fit.NOWHERE)


def headline(profile: Profile) -> str:
    """The answer in one sentence."""
    wall, use, memory = format_duration(profile.wall_ns), profile.use, profile.memory
    parts = []
    if use is not None:
        parts.append(
            f"GPU {use.device} is busy for {share(use.busy_ns, profile.wall_ns)} of {wall}"
        )
    elif profile.operators:
        top = profile.operators[0]
        parts.append(
            f"{visible(top.name)} takes the most CPU time, {format_duration(top.self_cpu_ns)} of"
            f" {wall}"
            + (
                "; nothing ran on a GPU"
                if memory is None or memory.is_cpu
                else "; the trace holds no GPU kernels"
            )
        )
    else:
        parts.append(f"{wall} of a program, without operators")
    if memory is not None:
        more = "" if memory.exact else " or more"
        memory_name = "memory" if not memory.is_cpu else "CPU memory"
        parts.append(f"{memory_name} peaks at {format_size(memory.allocated_bytes)}{more}")
    return f"{'; '.join(parts)}."


def sentences(profile: Profile) -> tuple[str, ...]:
    """The figures behind the answer."""
    texts = (
        _use_sentence(profile),
        _memory_sentence(profile),
        _trace_sentence(profile),
        _cpu_sentence(profile),
    )
    return tuple(filter(None, texts))


def _use_sentence(profile: Profile) -> str:
    use = profile.use
    if use is None:
        return ""
    text = f"Idle for {format_duration(use.idle_ns)} in {counted(use.gaps, 'gap')}"
    if use.longest:
        text += f"; the longest, {format_duration(use.longest[0].ns)}: {gap_words(use.longest[0])}"
    other_gpus = [
        f"GPU {other.device} {share(other.busy_ns, profile.wall_ns)}"
        for other in profile.devices
        if other.device != use.device
    ]
    return text + "." + (f" Others busy: {', '.join(other_gpus)}." if other_gpus else "")


def _memory_sentence(profile: Profile) -> str:
    memory = profile.memory
    if memory is None:
        return ""
    at = format_duration(memory.peak_ns - profile.wall_start_ns)
    text = f"Peak on {memory.device}: {format_size(memory.allocated_bytes)} allocated {at} in"
    text += f", in step {memory.peak_step}" if memory.peak_step is not None else ""
    if memory.reserved_bytes is not None:
        text += f"; at most {format_size(memory.reserved_bytes)} reserved"
    if not memory.exact:
        text += "; counted from the start of the trace; earlier memory is unknown"
    return f"{text}{_likely_groups(memory)}.{_other_peaks(profile)}"


def _likely_groups(memory: MemoryReport) -> str:
    if memory.grouped_by != "category" or not memory.by_group:
        return ""
    largest = list(memory.by_group.items())[:4]
    return f". Likely {', '.join(f'{plain(name)} {format_size(size)}' for name, size in largest)}"


def _other_peaks(profile: Profile) -> str:
    peaks = [
        f"{memory.device} {format_size(memory.allocated_bytes)}"
        for memory in profile.memories[1:]
        if memory.allocated_bytes
    ]
    return f" Peaks elsewhere: {', '.join(peaks[:4])}." if peaks else ""


def _trace_sentence(profile: Profile) -> str:
    if not profile.steps:
        return ""
    durations = sorted(step.end_ns - step.start_ns for step in profile.steps)
    text = f"{counted(len(profile.steps), 'profiler step')} of {format_duration(durations[len(durations) // 2])}"
    text += " (median)" if len(durations) > 1 else ""
    memory = profile.memory
    if memory is not None and len(set(memory.step_peaks)) > 1:
        first, last = memory.step_peaks[0], memory.step_peaks[-1]
        text += f"; peaks from {format_size(first)} to {format_size(last)}"
    return text + "."


def _cpu_sentence(profile: Profile) -> str:
    use, wall_ns = profile.cpu_use, profile.wall_ns
    if not use.threads:
        return ""
    text = f"The CPU was in operators for {share(use.busy_ns, wall_ns)} of the time"
    if use.waiting_ns:
        text += f", waited for the GPU for {share(use.waiting_ns, wall_ns)}"
    text += f", in Python or idle for {share(use.rest_ns, wall_ns)}"
    if use.threads > 1:
        text += f"; {counted(use.threads, 'thread')}, {use.mean_threads:.1f} busy on average"
    return f"{text}."


def _claim(finding: Finding) -> Claim:
    where = f" at {short_place_name(finding.place)}" if finding.place else ""
    title = sentence(visible(finding.title) + visible(where))
    return Claim(
        title=with_verdict(finding.verdict, title),
        evidence=visible_sentences(finding.evidence),
        fix=sentence(finding.fix or ""),
    )


_ASK = "torch.profiler.profile(profile_memory=True, record_shapes=True, with_stack=True)"


def next_command(profile: Profile) -> Command:
    """What tells more than this trace did."""
    memory = profile.memory
    if memory is None:
        return Command("profile memory, too", (_ASK,))
    if not memory.is_cpu:
        size = format_size(memory.allocated_bytes)
        return Command(
            f"see which lines use the {size}",
            ("vramlens run -o run.vram YOUR_SCRIPT.py",),
        )
    if not profile.with_stack:
        return Command(
            f"see which functions request the {format_size(memory.allocated_bytes)}", (_ASK,)
        )
    source = profile.source
    if source == "-":
        return Command("show more of each table", ("vramlens explain - --top 30 < FILE",))
    name = shlex.quote(f"./{source}" if source.startswith("-") else source)
    size = format_size(memory.allocated_bytes)
    return Command(
        f"show more of each table, and the {size} over time", (f"vramlens explain {name} --top 30",)
    )
