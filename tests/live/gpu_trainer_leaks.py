"""Leaks in a Hugging Face fine-tuning loop, through the command line, beside what PyTorch's
allocator counted; by hand.

PYTHONPATH=src python tests/live/gpu_trainer_leaks.py OUT [JOB ...]

Needs transformers and accelerate. On a GPU it checks the report and the recording of each job of
trainer_jobs.py, the diff of a leak and its repair and, where two GPUs are, a leak on one of two
ranks. Without a GPU there are no recordings: then it checks the reports, also of two ranks, by the
sizes that the kept tensors must have. Jobs: those of trainer_jobs.py, ``diff`` (after losses, both
    and fixed) and ``ranks``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vramlens.units import format_size, parse_size

PROGRAM = Path(__file__).with_name("trainer_jobs.py")
VRAMLENS = (sys.executable, "-m", "vramlens")
ON_GPU = torch.cuda.is_available()
GPUS = torch.cuda.device_count()
SECONDS = 120
TOLERANCE = 0.05
BLOCK = 512  # bytes: what the allocator counts is a multiple of it
OWNERS = {"answer loss": "seen_losses", "loss": "seen_losses", "hidden": "kept_hidden"}
LEAKS: dict[str, list[str]] = {
    "losses": ["answer loss"],
    "hidden": ["hidden"],
    "both": ["answer loss", "hidden"],
    "both_in_main": ["answer loss", "hidden"],
    "trained": ["loss"],
    "fixed": [],
}
ALONE = {"answer loss": "losses", "hidden": "hidden"}
"""In which job this leak is the only one: what it keeps in another is told by that."""
NOT_RECORDED = ("trained",)
"""A few bytes per step are too few for a recording."""
_FOUND = re.compile(r"LEAK (\w+): (?:([\d.]+ \w+) a step)?")
_OTHER = re.compile(r"(possible|not a problem): (.*)")
_OWNER = re.compile(r"  (\S+), an? [^(]*\((\S+):(\d+) ")


@dataclass(frozen=True, slots=True)
class Said:
    """One entry, of a report or of a recording's answer."""

    verdict: str
    owner: str
    file: str
    line: int
    bytes_per_step: int

    @property
    def is_leak(self) -> bool:
        return self.verdict in ("proven", "likely")

    def __str__(self) -> str:
        where = f" ({Path(self.file).name}:{self.line})" if self.line else ""
        return f"{self.verdict} {self.owner or 'nobody'}{where} {format_size(self.bytes_per_step)} per step"


class Checks:
    def __init__(self) -> None:
        self.answers: list[bool] = []

    def __call__(self, right: bool, what: str, said: object = "") -> None:
        self.answers.append(right)
        print(
            f"{'right' if right else 'WRONG'}: {what}" + (f": {said}" if str(said) else ""),
            flush=True,
        )


def call(command: Sequence[str], visible: str | None = None) -> subprocess.CompletedProcess[str]:
    """A command and its output, which also says so where it took too long; ``visible``: the GPUs
    that it may see.
    """
    environment = os.environ | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
    )
    try:
        output, errors = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun ends its workers then; killed, it would leave them behind
        try:
            output, errors = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
        return subprocess.CompletedProcess(
            command, 124, output, f"{errors}\ntook more than {SECONDS} s"
        )
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def answer_of(*arguments: str) -> dict[str, Any]:
    """What a verb says as data; empty where it fails."""
    done = call([*VRAMLENS, *arguments, "--json"])
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        print(
            f"vramlens {' '.join(arguments)}: exit {done.returncode}: {done.stderr.strip()[-500:]}"
        )
        return {}
    return answer


def in_report(text: str) -> list[Said]:
    """The entries of a live report as it is printed."""
    said = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if found := _FOUND.match(line):
            # What is wrapped is indented; the entry's first sentence names owner and statement.
            sentence = "  " + " ".join(one.strip() for one in lines[number + 1 : number + 4])
            owner = _OWNER.match(sentence)
            name, file, at = (owner[1], owner[2], int(owner[3])) if owner else ("", "", 0)
            said.append(Said(found[1], name, file, at, parse_size(found[2]) if found[2] else 0))
        elif other := _OTHER.match(line):
            said.append(Said(other[1], other[2], "", 0, 0))
    # Silence is no acquittal: a report that found nothing says so.
    return (
        said
        if "LEAK " in text or "No leak" in text
        else [*said, Said("no answer from", "the report", "", 0, 0)]
    )


def in_recording(path: Path) -> list[Said]:
    """The entries of ``vramlens leaks --json``."""
    answer = answer_of("leaks", str(path))
    if not answer:
        return [Said("no answer from", path.name, "", 0, 0)]
    said = []
    for leak in answer["leaks"]:
        owner = leak["owner"] or {"name": "", "file": "", "line": 0}
        rate = leak["bytes_per_step"] or 0
        said.append(
            Said(leak["verdict"], owner["name"], owner["file"] or "", owner["line"] or 0, rate)
        )
    return said


def is_near(said: int, true: int) -> bool:
    counted = -(-said // BLOCK) * BLOCK if ON_GPU else said
    return abs(counted - true) <= TOLERANCE * true


def run(job: str, out: Path) -> tuple[str, dict[str, Any]]:
    """A job's report, and the truth that the program wrote; no truth where it failed."""
    path = out / f"{job}.rank0.json"
    path.unlink(missing_ok=True)
    (out / f"{job}.vram").unlink(missing_ok=True)
    program = (str(PROGRAM), "--job", job, "--out", str(out))
    # With several GPUs in sight of one process the Trainer would use nn.DataParallel.
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    done = call([*VRAMLENS, "run", "--leaks", "-o", str(out / f"{job}.vram"), *program], first)
    (out / f"{job}.txt").write_text(done.stderr, encoding="utf-8")
    if done.returncode or not path.exists():
        print(f"{job}: exit {done.returncode}: {done.stderr.strip()[-1500:]}")
        return done.stderr, {}
    return done.stderr, json.loads(path.read_text(encoding="utf-8"))


def kept_by(leak: str, job: str, truths: dict[str, dict[str, Any]]) -> int:
    """The true bytes per step of one leak: of a job with two, what the allocator counted in the
    job with this alone.
    """
    measured = truths.get(ALONE[leak] if len(LEAKS[job]) > 1 else job, {}).get("bytes_per_step")
    return int(truths[job]["kept"][leak] if measured is None else measured)


def compare(
    check: Checks, job: str, source: str, said: list[Said], truths: dict[str, dict[str, Any]]
) -> None:
    """Each leak by owner, line and bytes; nothing else; all of them together as the allocator
    counted.
    """
    truth, found = truths[job], [one for one in said if one.is_leak]
    for leak in LEAKS[job]:
        mine = [one for one in found if one.owner.endswith(OWNERS[leak])]
        shown = "; ".join(map(str, mine)) or f"only {'; '.join(map(str, said)) or 'nothing'}"
        line, true = truth["lines"][leak], kept_by(leak, job, truths)
        at = {(Path(one.file).name, one.line) for one in mine}
        total = sum(one.bytes_per_step for one in mine)
        check(
            at == {(PROGRAM.name, line)},
            f"{job}, {source}: {OWNERS[leak]} kept by line {line}",
            shown,
        )
        check(is_near(total, true), f"{job}, {source}: {true:,} bytes per step", f"said {total:,}")
    if LEAKS[job]:
        others = [
            one for one in found if not any(one.owner.endswith(OWNERS[leak]) for leak in LEAKS[job])
        ]
        check(not others, f"{job}, {source}: nobody else is accused", "; ".join(map(str, others)))
    else:
        doubted = [one for one in said if one.verdict != "not a problem"]
        check(
            not doubted,
            f"{job}, {source}: no leak, not even a possible one",
            "; ".join(map(str, doubted)),
        )
    if len(LEAKS[job]) > 1 and truth["bytes_per_step"] is not None:
        total = sum(one.bytes_per_step for one in found)
        true = truth["bytes_per_step"]
        check(
            is_near(total, true),
            f"{job}, {source}: {true:,} bytes per step together",
            f"said {total:,}",
        )


def counted(truth: dict[str, Any]) -> str:
    """What PyTorch counted, in words."""
    if truth["bytes_per_step"] is None:
        return "no allocator counts"
    return (
        f"{truth['bytes_per_step']:,} bytes per step allocated, {truth['requested_per_step']:,} of them asked for"
        f" ({truth['gpu']}, torch {truth['versions']['torch']}, transformers {truth['versions']['transformers']})"
    )


def check_jobs(check: Checks, out: Path, jobs: Sequence[str]) -> None:
    truths: dict[str, dict[str, Any]] = {}
    for job in jobs:
        report, truth = run(job, out)
        if not truth:
            check(False, f"{job}: the program ran")
            continue
        truths[job] = truth
        print(f"\n== {job}: {counted(truth)}")
        compare(check, job, "report", in_report(report), truths)
        if not LEAKS[job]:
            none = [line for line in report.splitlines() if line.startswith("No leak: ")]
            check(
                len(none) == 1, f"{job}, report: says so", "; ".join(none) or report.strip()[-500:]
            )
        recording = out / f"{job}.vram"
        if ON_GPU and job not in NOT_RECORDED:
            check(recording.exists(), f"{job}: {recording.name} is written")
            compare(check, job, "recording", in_recording(recording), truths)
        elif ON_GPU:
            print(
                f"{job}, recording: says {'; '.join(map(str, in_recording(recording))) or 'nothing'} (not judged)"
            )


def check_diff(check: Checks, out: Path, job: str) -> None:
    """That the repair took away all growth, and nothing is worse."""
    files = (str(out / f"{job}.vram"), str(out / "fixed.vram"))
    print(
        f"\n== diff of {job} and fixed\n"
        + "\n".join(call([*VRAMLENS, "diff", *files]).stdout.splitlines()[:12])
    )
    diff, truth = answer_of("diff", *files), out / f"{job}.rank0.json"
    true = json.loads(truth.read_text(encoding="utf-8"))["bytes_per_step"] if truth.exists() else 0
    was, now = diff.get("bytes_per_step_before"), diff.get("bytes_per_step_after")
    check(
        was is not None and is_near(was, true),
        f"diff, {job}: it grew {true:,} bytes per step",
        f"said {was}",
    )
    check(now == 0, f"diff, {job}: repaired, it grows no more", f"said {now}")
    check(diff.get("worse") == [], f"diff, {job}: nothing is worse", diff.get("worse"))


def check_ranks(check: Checks, out: Path) -> None:
    """One of two ranks leaks."""
    job, folder, logs = "losses_rank1", out / "two", out / "two_logs"
    command = [
        *(
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
            "--redirects",
            "3",
        ),
        *("--log-dir", str(logs), "--no-python", *VRAMLENS, "run", "--leaks", "-o", str(folder)),
        *(str(PROGRAM), "--job", job, "--out", str(out)),
    ]
    for old in (
        *out.glob(f"{job}.rank*.json"),
        *folder.glob("*.vram"),
        *logs.glob("*/attempt_0/*/*.log"),
    ):
        old.unlink()
    print("\n== two ranks")
    done = call(command)
    if done.returncode:
        check(False, "two ranks: the program ran", done.stderr.strip()[-1500:])
        return
    truth = json.loads((out / f"{job}.rank1.json").read_text(encoding="utf-8"))
    true, line = (
        truth["bytes_per_step"] or truth["kept"]["answer loss"],
        truth["lines"]["answer loss"],
    )
    sources = {
        (rank, "report"): in_report(
            next(logs.glob(f"*/attempt_0/{rank}/stderr.log")).read_text(encoding="utf-8")
        )
        for rank in (0, 1)
    }
    if ON_GPU:
        sources |= {
            (rank, "recording"): in_recording(folder / f"rank{rank:05}.vram") for rank in (0, 1)
        }
    for (rank, source), said in sources.items():
        wanted = [(OWNERS["answer loss"], line)] if rank == 1 else []
        doubted = [one for one in said if one.verdict != "not a problem"]
        named = sorted({(one.owner.rpartition(".")[2], one.line) for one in doubted})
        check(
            named == wanted,
            f"rank {rank}, {source}: accused are {wanted}",
            "; ".join(map(str, said)),
        )
        if rank == 1:
            total = sum(one.bytes_per_step for one in doubted)
            check(
                is_near(total, true),
                f"rank 1, {source}: {true:,} bytes per step",
                f"said {total:,}",
            )
    if ON_GPU:
        print("\n".join(call([*VRAMLENS, "ranks", str(folder)]).stdout.splitlines()[:12]))
        found = [
            (one["ranks"], one["cause"])
            for one in answer_of("ranks", str(folder)).get("differences", [])
        ]
        # Rank 0 runs the repaired class, whose lines rank 1 does not have; others may use these
        # GPUs, too.
        own = [one for one in found if one[1] != "other_process"]
        check(
            own == [([1], "leak"), ([0], "rank_only")],
            "ranks: rank 1 leaks, and rank 0 has lines of its own",
            found,
        )


def main(out: Path, names: Sequence[str]) -> int:
    out.mkdir(parents=True, exist_ok=True)
    chosen = names or (*LEAKS, "diff", "ranks")
    check = Checks()
    if not ON_GPU:
        print("no GPU: no recordings, bytes by the tensors' shapes")
    check(
        "import vramlens" not in PROGRAM.read_text(encoding="utf-8"),
        f"{PROGRAM.name} does not import vramlens",
    )
    check_jobs(check, out, [job for job in LEAKS if job in chosen])
    if "diff" in chosen and ON_GPU:
        for job in ("losses", "both"):
            check_diff(check, out, job)
    elif "diff" in chosen:
        print("\n== diff: left out, it needs recordings")
    if "ranks" in chosen and GPUS == 1:
        print("\n== two ranks: left out, this machine has one GPU")
    elif "ranks" in chosen:
        check_ranks(check, out)
    print(f"\n{sum(check.answers)} of {len(check.answers)} right")
    return 0 if all(check.answers) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
