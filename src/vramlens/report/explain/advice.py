"""Advice: the one command that comes next, or the edit to paste where no command can tell more."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from vramlens.analyses.error_text.libraries import FOREIGN, OUTSIDE_FIXES
from vramlens.report.document import Command
from vramlens.report.explain.predicted_step import step_to_predict
from vramlens.report.wording import visible
from vramlens.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from vramlens.analyses.explanation import Explanation, OomVerdict, Peak

# What the system knows of host memory that ran out; a recording of the GPU's knows nothing of it.
_HOST = {
    "pinned_memory": (
        "check how much memory the process may pin and how much the host has left",
        "ulimit -l; free -h",
    ),
    "shared_memory": ("check how much shared memory the workers have", "df -h /dev/shm"),
}
_HOST_LOG = ("check the kernel's log", 'dmesg -T | grep -i -E "killed process|out of memory"')
_FOREIGN = frozenset(OUTSIDE_FIXES[kind][0] for kind in FOREIGN)
_MPS = "print(torch.mps.current_allocated_memory(), torch.mps.driver_allocated_memory())  # bytes"


def next_command(explanation: Explanation) -> Command:
    """The one next step after an answer."""
    step = next(filter(None, (advise(explanation) for advise in _ADVISERS)))
    return Command(visible(step.why), tuple(map(visible, step.lines)))


def _after_replay(explanation: Explanation) -> Command | None:
    """Where no replayed setting gets past the failure, asking again which one does tells nothing."""
    oom = explanation.failure
    if oom is None or oom.cause != "fragmentation" or explanation.peak is None:
        return None
    ids = {finding.id for finding in explanation.findings}
    if ids & {"settings_help", "settings_may_help"} or "settings_do_not_help" not in ids:
        return None
    size = format_size(oom.requested_bytes or oom.tried_bytes or 0)
    why = (
        f"allocate the {size} first, or {_larger_limit(oom)}, and record again (none of the "
        "replayed settings helps)"
    )
    return Command(why, ("vramlens run -o again.vram YOUR_SCRIPT.py",))


def _larger_limit(oom: OomVerdict) -> str:
    is_own_limit = oom.wall == "process_limit"
    if oom.reserved_bytes is None:
        return "raise the limit" if is_own_limit else "use a larger card"
    size = format_size(oom.reserved_bytes + (oom.tried_bytes or oom.requested_bytes or 0))
    return f"raise the limit to {size}" if is_own_limit else f"use a larger card, with {size}"


def _outside_pytorch(explanation: Explanation) -> Command | None:
    """What is not of PyTorch's CUDA allocator no recording of ``vramlens run`` shows."""
    if explanation.peak is not None:
        return None
    if any(finding.id in _FOREIGN for finding in explanation.findings):
        return Command("see which processes use the GPU's memory now", ("vramlens top --once",))
    if any("PYTORCH_MPS_" in (finding.fix or "") for finding in explanation.findings):
        return Command(
            "paste this before the failing line to see what PyTorch and Metal hold", (_MPS,)
        )
    return None


def _fix_the_program(explanation: Explanation) -> Command | None:
    if all(finding.id != "not_memory" for finding in explanation.findings):
        return None
    why = "fix this and run the program again: no memory ran out, so there is nothing to record"
    return Command(why, ())


def _ask_the_host(explanation: Explanation) -> Command | None:
    oom, ids = explanation.failure, (finding.id for finding in explanation.findings)
    if oom is None or oom.wall != "host":
        return None
    why, command = next((_HOST[name] for name in ids if name in _HOST), _HOST_LOG)
    return Command(why, (command,))


def _record(explanation: Explanation) -> Command | None:
    """How to get a recording, for those who have only an error's text, or a recording of
    nothing.
    """
    if explanation.peak is not None:
        return None
    rows = [row for row in explanation.ledger if row.kind.startswith("pytorch_allocated")]
    size_bytes = sum(row.bytes for row in rows)
    memory = f"the {format_size(size_bytes)}" if size_bytes else "the memory"
    why = f"record the run to see which lines use {memory}"
    return Command(why, ("vramlens run -o oom.vram YOUR_SCRIPT.py",))


def _keep_prediction(explanation: Explanation) -> Command | None:
    """How to get the recording of a prediction that was written nowhere."""
    if explanation.recording.source:
        return None
    script = shlex.join(explanation.recording.meta.command[2:])
    return Command(
        "save the prediction as a recording for view, tune and diff",
        (f"vramlens predict -o predicted.vram {script or 'YOUR_SCRIPT.py'}",),
    )


def _ask_the_recording(explanation: Explanation) -> Command | None:
    """The question to ask of the recording next, and the verb that answers it."""
    peak, source = explanation.peak, explanation.recording.source
    if peak is None:
        return None
    why, verb = _question(explanation, peak)
    options = f" --device {peak.device}" if len(explanation.recording.devices) > 1 else ""
    if source == "-":
        return Command(why, (f"vramlens {verb} -{options} < FILE",))
    # Else it would be taken for an option.
    name = f"./{source}" if source.startswith("-") else source
    return Command(why, (f"vramlens {verb} {shlex.quote(name)}{options}",))


def _question(explanation: Explanation, peak: Peak) -> tuple[str, str]:
    oom = explanation.failure
    cause = oom.cause if oom is not None else None
    if oom is not None and cause == "fragmentation":
        size = format_size(oom.requested_bytes or oom.tried_bytes or 0)
        return f"compare the settings that make the {size} fit", "tune"
    if cause == "leak":
        return "see what each step leaves behind", "leaks"
    if oom is None and explanation.leaks and not explanation.leaks[0].is_small:
        growth = explanation.leaks[0].rate_text
        return f"see what each step leaves behind ({growth})", "leaks"
    high = format_size(peak.requested_bytes)
    extent = "whole run" if oom is None else "run up to the failure"
    return f"see the {extent} on a timeline (peak: {high})", "view"


_ADVISERS: tuple[Callable[[Explanation], Command | None], ...] = (
    _after_replay,
    step_to_predict,
    _outside_pytorch,
    _fix_the_program,
    _ask_the_host,
    _record,
    _keep_prediction,
    _ask_the_recording,
)
"""In order: the first that has something to say is followed."""
