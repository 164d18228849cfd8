"""Failures of the host's memory that look like the GPU's: what the text of one proves."""

from __future__ import annotations

import re

from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.read.oom.oom_text import OomMessage
from vramlens.units import format_size


def host_headline(message: OomMessage) -> str:
    """One sentence that sends the reader to the right memory."""
    if _is_shared_memory(message):
        return "The workers most likely ran out of shared memory (/dev/shm), not of GPU memory"
    if message.verdict == Verdict.POSSIBLE:
        return (
            "A process was killed or refused, most likely because host memory ran out, not GPU "
            "memory"
        )
    if message.tried_bytes is not None:
        return (
            f"{format_size(message.tried_bytes)} of host memory was refused; GPU memory is not "
            "the cause"
        )
    return "Host memory ran out, not GPU memory"


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
    elif re.search(r"KILL|Kill|oom|Out Of Memory|low on memory", message.text):
        held = re.search(r"anon-rss:(\d{1,16})kB", message.text)
        title, size = _killed(message.text), int(held[1]) * 1024 if held else None
        fix = "read `dmesg -T | grep -i oom` and the container's or job's memory limit; fewer workers, smaller queues"
        return (Finding("oom_killer", Verdict(message.verdict), title, size, fix=fix),)
    else:
        kind, verdict = "host_memory", Verdict(message.verdict)
        title, fix = (
            "A request for host memory failed; the limit may come from the machine, the "
            "container or the job",
            "look at `free -h` and the job's memory limit",
        )
    return (Finding(kind, verdict, title, message.tried_bytes, fix=fix),)


def _killed(text: str) -> str:
    """Who killed what, as far as the message says."""
    if named := re.search(
        r"Kill(?:ed)? process (\d{1,10}) \(([^)]{1,40})\)(?:.{0,80}?anon-rss:(\d{1,16})kB)?", text
    ):
        whose = (
            "the limit of its container or job was reached"
            if "cgroup" in text
            else "the whole machine was full"
        )
        held = f", which held {format_size(int(named[3]) * 1024)}" if named[3] else ""
        return f"The kernel killed process {named[1]} ({named[2]}){held}: {whose}"
    if "DataLoader worker" in text:
        return (
            "A DataLoader worker got SIGKILL, the signal that the kernel's out-of-memory "
            "killer sends"
        )
    if re.search(r"task \d{1,7}: Out Of Memory|StepId=|slurm", text):
        return (
            "Slurm stopped a step at its memory limit (--mem), which counts all tasks of the step"
        )
    if "OOMKilled" in text:
        return "Kubernetes killed the container at its memory limit (resources.limits.memory)"
    if "low on memory" in text:
        return "Ray's memory monitor killed workers before the kernel would have"
    if "oom" in text:
        return "The out-of-memory killer killed a process in this job's cgroup"
    return (
        "SIGKILL gives no reason: the kernel's log shows whether the out-of-memory killer sent it"
    )
