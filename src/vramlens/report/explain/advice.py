"""Advice: the one command that comes next, or the edit to paste where no command can tell more."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from vramlens.report.document import Command
from vramlens.units import format_size

if TYPE_CHECKING:
    from vramlens.analyses.explanation import Explanation, Peak

# The verbs that this version has (a test compares them with the command line's): advice names no
# others.
VERBS = frozenset(
    {
        "check",
        "diff",
        "doctor",
        "dump",
        "explain",
        "export",
        "leaks",
        "predict",
        "ranks",
        "replay",
        "run",
        "top",
        "tune",
        "view",
    }
)


def next_step(explanation: Explanation) -> Command:
    """The one next step after an answer."""
    oom, peak = explanation.failure, explanation.peak
    if any(finding.id == "not_memory" for finding in explanation.findings):
        return Command(
            "fix this and run the program again: no memory ran out, so there is nothing to record",
            (),
        )
    if oom is not None and oom.wall == "host":
        return _ask_the_host(explanation)
    if peak is None:
        return _record(explanation)
    recording = explanation.recording
    if not recording.source:
        return _keep_prediction(explanation)
    why, verb = _verb_for_recording(explanation, peak)
    options = f" --device {peak.device}" if len(recording.devices) > 1 else ""
    return _command(why, verb, recording.source, options)


def _verb_for_recording(explanation: Explanation, peak: Peak) -> tuple[str, str]:
    """The question to ask of the recording, and the verb that answers it."""
    oom = explanation.failure
    cause = oom.cause if oom is not None else None
    if oom is not None and cause == "fragmentation":
        size = format_size(oom.requested_bytes or oom.tried_bytes or 0)
        return f"compare the settings that make the {size} fit", "tune"
    if cause == "leak":
        return "see what each step leaves behind", "leaks"
    if oom is None and explanation.leaks and not explanation.leaks[0].is_small:
        growth = format_size(explanation.leaks[0].bytes_per_step)
        return f"see what each step leaves behind ({growth})", "leaks"
    high = format_size(peak.requested_bytes)
    return f"see the whole run on a timeline (peak: {high})", "view"


def _keep_prediction(explanation: Explanation) -> Command:
    """How to get the recording of a prediction that was written nowhere."""
    meta = explanation.recording.meta
    script = shlex.join(meta.command[2:]) if meta is not None else ""
    return Command(
        "save the prediction as a recording for view, tune and diff",
        (f"vramlens predict -o predicted.vram {script or 'YOUR_SCRIPT.py'}",),
    )


def _command(why: str, verb: str, source: str, options: str) -> Command:
    if source == "-":
        return Command(why, (f"vramlens {verb} -{options} < FILE",))
    name = (
        f"./{source}" if source.startswith("-") else source
    )  # else it would be taken for an option
    return Command(why, (f"vramlens {verb} {shlex.quote(name)}{options}",))


# What the system knows of host memory that ran out; a recording of the GPU's knows nothing of it.
_HOST = {
    "pinned_memory": (
        "check how much memory the process may pin and how much the host has left",
        "ulimit -l; free -h",
    ),
    "shared_memory": ("check how much shared memory the workers have", "df -h /dev/shm"),
}
_HOST_LOG = ("check the kernel's log", 'dmesg -T | grep -i -E "killed process|out of memory"')


def _ask_the_host(explanation: Explanation) -> Command:
    why, command = next((_HOST[it.id] for it in explanation.findings if it.id in _HOST), _HOST_LOG)
    return Command(why, (command,))


def _record(explanation: Explanation) -> Command:
    """How to get a recording, for those who have only an error's text, or a recording of
    nothing.
    """
    held = sum(row.bytes for row in explanation.ledger if row.kind.startswith("pytorch_allocated"))
    what = f"the {format_size(held)}" if held else "the memory"
    why = f"record the run to see which lines use {what}"
    return Command(why, ("vramlens run -o oom.vram YOUR_SCRIPT.py",))
