"""Failures of the host's memory that look like the GPU's: what the text of one proves."""

from __future__ import annotations

import re

from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.read.oom.oom_text import OomMessage
from vramlens.units import format_size

KILLED = r"KILL|Kill|kill|oom|Out Of Memory|low on memory"
"""In the text of what ended a process by a signal."""

_SLURM = r"task \d{1,7}: Out Of Memory|StepId=|slurm"


def host_headline(message: OomMessage) -> str:
    """One sentence that sends the reader to the right memory."""
    if _is_shared_memory(message):
        return "The workers most likely ran out of shared memory (/dev/shm), not of GPU memory"
    if message.verdict == Verdict.POSSIBLE:
        return (
            "A process was killed or refused memory. Most likely the host ran out of memory (RAM), "
            "not the GPU"
        )
    if message.tried_bytes is not None:
        return (
            f"A request for {format_size(message.tried_bytes)} of host memory (RAM) failed; GPU "
            "memory is not the cause"
        )
    return "The host ran out of memory (RAM), not the GPU"


def _is_shared_memory(message: OomMessage) -> bool:
    return (
        re.search(r"[Bb]us error|shared memory", message.text) is not None
        and message.kind == "host"
    )


def host_findings(message: OomMessage, wall: str) -> tuple[Finding, ...]:
    """What to look at when the host's memory failed."""
    if wall != "host":
        return ()
    if message.while_pinning or "CUDA host alloc" in message.text:
        kind, verdict = "pinned_memory", Verdict.LIKELY
        title, fix = (
            "Pinned host memory could not be allocated",
            "pin_memory=False or fewer workers; look at `ulimit -l`",
        )
    elif _is_shared_memory(message):
        kind, verdict = "shared_memory", Verdict.LIKELY
        title, fix = (
            "DataLoader workers pass their batches through /dev/shm, which Docker limits to 64 MiB",
            "docker run --shm-size=16g, or fewer DataLoader workers",
        )
    elif re.search(KILLED, message.text):
        anon_rss = re.search(r"anon-rss:(\d{1,16})kB", message.text)
        title, size = _killed(message.text), int(anon_rss[1]) * 1024 if anon_rss else None
        fix = (
            "use fewer DataLoader workers or a smaller prefetch_factor, or allow more host memory "
            f"({_where_allowed(message.text)})"
        )
        return (Finding("oom_killer", Verdict(message.verdict), title, size, fix=fix),)
    else:
        kind, verdict = "host_memory", Verdict(message.verdict)
        title, fix = (
            "A request for host memory failed; the limit may come from the machine, the "
            "container or the job",
            "look at `free -h` and the job's memory limit",
        )
    return (Finding(kind, verdict, title, message.tried_bytes, fix=fix),)


def _where_allowed(text: str) -> str:
    """Where the limit of the host's memory is set, as far as the message says."""
    if re.search(_SLURM, text):
        return "sbatch --mem"
    if "OOMKilled" in text:
        return "resources.limits.memory"
    return "the limit of the machine, the container or the job"


def _killed(text: str) -> str:
    """Who killed what, as far as the message says."""
    if named := re.search(
        r"Kill(?:ed)? process (\d{1,10}) \(([^)]{1,40})\)(?:.{0,80}?anon-rss:(\d{1,16})kB)?", text
    ):
        reason = (
            "the limit of its container or job was reached"
            if "cgroup" in text
            else "the whole machine was full"
        )
        held_memory = f", which held {format_size(int(named[3]) * 1024)}" if named[3] else ""
        return f"The kernel killed process {named[1]} ({named[2]}){held_memory}: {reason}"
    if "DataLoader worker" in text:
        return (
            "A DataLoader worker got SIGKILL, the signal that the kernel's out-of-memory "
            "killer sends"
        )
    if re.search(_SLURM, text):
        return (
            "Slurm killed the job step at its limit of host memory (--mem). All tasks of the step "
            "on a node share that limit"
        )
    if "OOMKilled" in text:
        return "Kubernetes killed the container at its memory limit (resources.limits.memory)"
    if "low on memory" in text:
        return "Ray's memory monitor killed workers before the kernel would have"
    if "oom" in text:
        return "The out-of-memory killer killed a process in this job's cgroup"
    return (
        "SIGKILL does not say why it was sent. The kernel's log shows whether its out-of-memory "
        "killer sent it"
    )
