"""How often ``vramlens ranks`` tells the cause and the rank of faults that somebody else planted.

    python benchmarks/rank_faults.py [JOBS] [FIRST_SEED]

makes JOBS jobs (default 500) of 2 to 64 simulated ranks (tests/support/rank_faults.py) as files,
asks ``ranks`` (of a log ``explain``) about each, and counts: jobs in which all that was planted is
told of the right ranks with its cause and line, and nothing besides; lines that are blamed and hold
less than half of their bytes; clean jobs in which something is told. Exits with 1 under 99 %, or
with one of the latter two.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.made_jobs import Expected, MadeJob
from support.rank_faults import made_job
from vramlens.cli.main import main as vramlens

Answer = dict[str, Any]


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
    line = difference["file"], difference["line"]
    right_line = not expected.lines or line in expected.lines
    right_cause = difference["cause"] in expected.causes
    return right_cause and tuple(difference["ranks"]) == expected.ranks and right_line


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
    wrong += [f"{difference['cause']} is told" for difference in differences]
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
        if line == (None, None) or not difference["bytes"] or job.log:
            continue
        holds = max(job.excess(rank, line) for rank in difference["ranks"])
        if holds < difference["bytes"] / 2:
            mib = 1 << 20
            told = difference["bytes"] / mib
            weak.append(f"{line}: {difference['cause']} {told:.1f} MiB, holds {holds / mib:.1f}")
    return weak


def main() -> None:
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    table: dict[str, Counter[str]] = defaultdict(Counter)
    right = weak = alarms = clean = ranks = 0
    began = time.perf_counter()
    root = Path(tempfile.mkdtemp(prefix="rank_faults"))
    for seed in range(first, first + jobs):
        job = made_job(seed, root / f"job{seed}")
        answer = answer_of(job)
        wrong, lines = mistakes(job, answer), weak_lines(job, answer)
        shutil.rmtree(job.folder)
        ranks += job.world
        right += not wrong
        weak += len(lines)
        if not job.differences and not job.shared:
            clean += 1
            alarms += bool(wrong)
        kind = job.kind.partition(",")[0]
        table[kind]["; ".join(wrong) or "right"] += 1
        if wrong or lines:
            print(f"seed {seed} {job.kind}, {job.world} ranks: {wrong} {lines}", flush=True)
    shutil.rmtree(root)
    for kind, counts in table.items():
        others = [f"{count} {text}" for text, count in counts.most_common() if text != "right"]
        print(f"{kind:24} {counts['right']:4} of {counts.total():4}  {', '.join(others)}")
    seconds = time.perf_counter() - began
    print(
        f"right {right} of {jobs} ({right / jobs:.1%}); blamed lines with less than half of their"
        f" bytes {weak}; false alarms {alarms} of {clean}; {ranks} ranks, {seconds:.0f} s"
    )
    raise SystemExit(right < 0.99 * jobs or weak > 0 or alarms > 0)


if __name__ == "__main__":
    main()
