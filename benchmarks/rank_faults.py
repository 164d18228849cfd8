"""How often ``vramlens ranks`` tells the cause and the rank of faults that somebody else planted.

    python benchmarks/rank_faults.py [JOBS] [FIRST_SEED]

makes JOBS jobs (default 500) of 2 to 64 simulated ranks (tests/support/rank_faults.py) as files,
asks ``ranks`` (of a log ``explain``) about each, and counts: jobs in which all that was planted is
told of the right ranks with its cause and line, and nothing besides; lines that are blamed and hold
less than half of their bytes; clean jobs in which something is told. Exits with 1 under 99%, or
with one of the latter two.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.rank_faults import made_job
from support.rank_score import answer_of, is_measured, mistakes, weak_lines


def main() -> None:
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    table: dict[str, Counter[str]] = defaultdict(Counter)
    right = weak = alarms = clean = ranks = measured = measured_in_clean = 0
    began = time.perf_counter()
    root = Path(tempfile.mkdtemp(prefix="rank_faults"))
    for seed in range(first, first + jobs):
        job = made_job(seed, root / f"job{seed}")
        answer = answer_of(job)
        wrong, lines = mistakes(job, answer), weak_lines(job, answer)
        shutil.rmtree(job.folder)
        ranks += job.world
        is_clean = not job.differences and not job.shared
        if any(is_measured(job, difference) for difference in answer["differences"]):
            measured += 1
            measured_in_clean += is_clean
        right += not wrong
        weak += len(lines)
        if is_clean:
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
        f" bytes {weak}; false alarms {alarms} of {clean}; jobs in which reserved memory is"
        f" told, by the simulator true {measured}, of them clean {measured_in_clean}; {ranks} ranks, {seconds:.0f} s"
    )
    raise SystemExit(right < 0.99 * jobs or weak > 0 or alarms > 0)


if __name__ == "__main__":
    main()
