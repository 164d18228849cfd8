"""The answer of ``vramlens ranks`` about a made job, held against what was planted."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

from support.made_jobs import Expected, MadeJob
from vramlens.cli.main import main as vramlens

Answer = dict[str, Any]
NO_LINE = (None, None)


def answer_of(job: MadeJob) -> Answer:
    output = io.StringIO()
    command = ["ranks", str(job.folder), "--workers", "1"]
    if job.log:
        command = ["explain", str(job.log)]
    with contextlib.redirect_stdout(output):
        vramlens([*command, "--json"])
    answer: Answer = json.loads(output.getvalue())
    return answer


def is_told(expected: Expected, difference: Answer) -> bool:
    right_cause = difference["cause"] in expected.causes
    if not right_cause or tuple(difference["ranks"]) != expected.ranks:
        return False
    line = difference["file"], difference["line"]
    if line != NO_LINE or not expected.lines:
        return not expected.lines or line in expected.lines
    # What many lines hold together names them in its evidence.
    return any(f"{file}:{number} " in difference["evidence"][0] for file, number in expected.lines)


def is_measured(job: MadeJob, difference: Answer) -> bool:
    """True if a rank, by the order of its requests, reserves what it is told to reserve: not
    planted, and true.
    """
    if difference["cause"] != "allocator":
        return False
    # Of several ranks it tells the most.
    most = max(job.reserves_more(rank) for rank in difference["ranks"])
    return most >= difference["bytes"] / 2


def mistakes(job: MadeJob, answer: Answer) -> list[str]:
    """All that is missing, wrong or too much in an answer."""
    differences = list(answer["differences"])
    wrong = []
    for expected in job.differences:
        fitting = [difference for difference in differences if is_told(expected, difference)]
        if not fitting:
            wrong.append(f"{'/'.join(expected.causes)} is not told")
            continue
        differences.remove(fitting[0])
        if job.host and job.host not in json.dumps(fitting[0]["evidence"]):
            wrong.append("the host is not told")
    unplanted = (difference for difference in differences if not is_measured(job, difference))
    wrong += [f"{difference['cause']} is told" for difference in unplanted]
    shared = answer["findings"][len(answer["differences"]) :]
    lines = {(finding["file"], finding["line"]) for finding in shared}
    if job.shared and not lines & set(job.shared):
        wrong.append("what all share is not told")
    if shared and not job.shared:
        wrong.append(f"shared {sorted(map(str, lines))} is told")
    failed = [failure["rank"] for failure in answer["failures"]]
    if job.first_failed is not None and failed[:1] != [job.first_failed]:
        wrong.append(f"failed first {failed[:1]}")
    return wrong


def weak_lines(job: MadeJob, answer: Answer) -> list[str]:
    """Blamed lines that hold less than half of the bytes of their difference."""
    weak = []
    for difference in answer["differences"]:
        line = difference["file"], difference["line"]
        if line == NO_LINE or not difference["bytes"] or job.log:
            continue
        holds = max(job.excess(rank, line) for rank in difference["ranks"])
        if holds < difference["bytes"] / 2:
            mib = 1 << 20
            told = difference["bytes"] / mib
            weak.append(f"{line}: {difference['cause']} {told:.1f} MiB, holds {holds / mib:.1f}")
    return weak
