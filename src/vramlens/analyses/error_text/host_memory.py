"""Failures of the host's memory that look like the GPU's: what the text of one proves."""

from __future__ import annotations

import re

from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.read.oom_text import OomMessage
from vramlens.units import format_size


def host_headline(message: OomMessage) -> str:
    """One sentence that sends the reader to the right memory."""
    if _is_shared_memory(message):
        return "The workers' shared memory (/dev/shm) most likely ran out: the GPU's memory is not the reason"
    if message.verdict == Verdict.POSSIBLE:
        return "A process was killed or refused, most often because the host's memory ran out: the GPU's did not"
    if message.tried_bytes is not None:
        return f"{format_size(message.tried_bytes)} of host memory was refused: the GPU's memory is not the reason"
    return "The host's memory ran out, not the GPU's"


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
            "Pinned host memory could not be had",
            "pin_memory=False or fewer workers; look at `ulimit -l`",
        )
    elif _is_shared_memory(message):
        kind, verdict = "shared_memory", Verdict.LIKELY
        title, fix = (
            "DataLoader workers hand their batches over in /dev/shm, which Docker makes 64 MiB large",
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
            "One request to the host itself failed; the limit may be the machine's, the container's or the job's",
            "look at `free -h` and the job's memory limit",
        )
    return (Finding(kind, verdict, title, message.tried_bytes, fix=fix),)


def _killed(text: str) -> str:
    """Who killed what, as far as the message says."""
    if named := re.search(
        r"Kill(?:ed)? process (\d{1,10}) \(([^)]{1,40})\)(?:.{0,80}?anon-rss:(\d{1,16})kB)?", text
    ):
        whose = (
            "its container's or job's limit was full"
            if "cgroup" in text
            else "the whole machine was full"
        )
        held = f", which held {format_size(int(named[3]) * 1024)}" if named[3] else ""
        return f"The kernel killed process {named[1]} ({named[2]}){held}: {whose}"
    if "DataLoader worker" in text:
        return (
            "A DataLoader worker got SIGKILL, which is what the kernel's out-of-memory killer sends"
        )
    if re.search(r"task \d{1,7}: Out Of Memory|StepId=|slurm", text):
        return (
            "Slurm stopped a step at its memory limit (--mem), which counts all of the step's tasks"
        )
    if "OOMKilled" in text:
        return "Kubernetes killed the container at its memory limit (resources.limits.memory)"
    if "low on memory" in text:
        return "Ray's memory monitor killed workers before the kernel had to"
    if "oom" in text:
        return "The out-of-memory killer was at work in this job's group of processes"
    return "SIGKILL leaves no reason behind: the kernel's log tells whether its out-of-memory killer sent it"
