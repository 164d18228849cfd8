"""Holds the replay against new runs on a GPU: predictions are written down first, then the runs are
measured.

    python benchmarks/replay_gpu.py OUT               # about three minutes on one GPU
    python benchmarks/replay_gpu.py OUT --only hard   # one part: models, fuzz, hard, recorder

1. Every program runs once under PyTorch's default settings, without a limit, and is recorded.
2. From those recordings alone its runs under other settings and limits are predicted:
OUT/predictions.json, with its
   SHA-256 beside it and on the screen.
3. Only then are they measured: OUT/measured.json; OUT/results.md and OUT/results.json hold the two
side by side.
4. Every recording made on the way, and more that are made to be hard to replay, is replayed under
its own settings.

OUT/recordings.tar holds recordings with what the allocator itself said (``NAME.pickle.xz``,
``NAME.json``): first those that did not come out, then the small ones.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import lzma
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from replay_programs import BEGINS_ITSELF, MIB, MODELS, PROGRAMS

AT_ONCE = 6
"""Processes that share the GPU; none of the programs needs more than a few GiB."""
PARTS = ("models", "fuzz", "hard", "recorder")
ENOUGH_S, LONGEST_S = 240, 120
CONFS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:32,max_non_split_rounding_mb:64",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "large_segment_size_mb:40",
    "expandable_segments:True,max_split_size_mb:64",
    "garbage_collection_threshold:0.7,max_split_size_mb:128",
)
LIMITED = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "garbage_collection_threshold:0.7",
)
SHARES = (0.9, 0.75)
"""Of what the default settings reserved: limits to predict and measure under."""
SMALL_BYTES, KEPT_BYTES = 80_000, 30_000_000


@dataclass(frozen=True)
class Run:
    """One program under one setting and limit."""

    program: str
    conf: str = ""
    cap_bytes: int = 0
    seed: int = 1
    recorder: str = "pytorch"

    @property
    def name(self) -> str:
        cap = f"_cap{self.cap_bytes // MIB}" if self.cap_bytes else ""
        conf = "".join(letter if letter.isalnum() else "_" for letter in self.conf) or "default"
        return f"{self.program}{self.seed}{cap}__{conf}"


# In the process of one run

_recording: Any = None


def begin_recording(torch: Any) -> None:
    """Begins to record, by PyTorch alone or by vramlens."""
    if _recording is not None:
        _recording.__enter__()
    else:
        torch.cuda.memory._record_memory_history(max_entries=2_000_000, stacks="python")


def perform(run: Run, path: Path) -> None:
    """Runs one program; leaves its recording, and what the allocator itself said."""
    global _recording
    import torch

    torch.cuda.init()
    total = torch.cuda.get_device_properties(0).total_memory
    if run.cap_bytes:
        torch.cuda.set_per_process_memory_fraction(run.cap_bytes / total)
    torch.manual_seed(0)
    if run.recorder == "vramlens":
        import vramlens

        _recording = vramlens.record(f"{path}.vram")
    if run.program not in BEGINS_ITSELF:
        begin_recording(torch)
    truth: dict[str, Any] = {
        "workload": run.program,
        "conf": run.conf,
        "seed": run.seed,
        "cap_bytes": run.cap_bytes,
    }
    more = [lambda: begin_recording(torch)] if run.program in BEGINS_ITSELF else []
    try:
        PROGRAMS[run.program](torch, run.seed, *more)
    except torch.OutOfMemoryError as error:
        truth["oom_message"] = str(error)
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    truth |= {
        "stats": {
            key: value for key, value in stats.items() if ".all." in key or key.startswith("num_")
        },
        "mem_get_info": torch.cuda.mem_get_info(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(0),
    }
    if _recording is not None:
        _recording.__exit__(None, None, None)
    else:
        raw = Path(f"{path}.pickle")
        torch.cuda.memory._dump_snapshot(str(raw))
        Path(f"{path}.pickle.xz").write_bytes(lzma.compress(raw.read_bytes(), preset=6))
        raw.unlink()
    Path(f"{path}.json").write_text(json.dumps(truth))


# In the process of the benchmark: no torch


def perform_all(runs: list[Run], folder: Path, until: float) -> list[Run]:
    """Runs each in a process of its own, several at once; those that left a recording."""

    def one(run: Run) -> bool:
        if time.monotonic() > until:
            return False
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTORCH")}
        if run.conf:
            environment["PYTORCH_CUDA_ALLOC_CONF"] = run.conf
        words = [str(folder / run.name), "--perform", json.dumps(asdict(run))]
        try:
            done = subprocess.run(
                [sys.executable, __file__, *words],
                env=environment,
                check=False,
                capture_output=True,
                timeout=LONGEST_S,
            )
        except subprocess.TimeoutExpired:
            print(f"{run.name}: took more than {LONGEST_S} s", flush=True)
            return False
        if done.returncode:
            print(
                f"{run.name}: {done.stderr.decode(errors='replace').strip().splitlines()[-1:]}",
                flush=True,
            )
        return done.returncode == 0

    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [run for run, good in zip(runs, pool.map(one, runs), strict=True) if good]


def read(path: Path) -> Any:
    """The trace of a run: of its .vram, else of its pickle."""
    if Path(f"{path}.vram").exists():
        import vramlens

        return vramlens.load(f"{path}.vram")
    from vramlens.read.snapshot import read_snapshot

    return read_snapshot(
        io.BytesIO(lzma.decompress(Path(f"{path}.pickle.xz").read_bytes())), path.name
    )


def truth_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(f"{path}.json").read_text())
    return found


def predict(base: Run, folder: Path) -> list[dict[str, Any]]:
    """What the runs of a program under other settings and limits will lead to, from its default
    recording.
    """
    from vramlens.replay import prove
    from vramlens.replay.what_if import ask, question

    trace = read(folder / base.name)
    proven = prove(trace, trace.devices[trace.main_device])
    reserved = proven.recorded.peak_reserved_bytes
    runs = [Run(base.program, conf, 0, base.seed) for conf in CONFS[1:] if "garbage" not in conf]
    for share in SHARES:
        cap = (
            int(reserved * share) // (2 * MIB) * 2 * MIB + MIB
        )  # between two sizes that can be reserved
        runs += [Run(base.program, conf, cap, base.seed) for conf in LIMITED]
    rows = ask(proven, [question(proven, run.conf, run.cap_bytes or None) for run in runs])
    return [
        {
            "run": asdict(run),
            "proof_is_exact": proven.recorded.exact,
            "peak_reserved_bytes": row.peak_reserved_bytes,
            "low_bytes": row.low_bytes,
            "high_bytes": row.high_bytes,
            "peak_allocated_bytes": row.peak_allocated_bytes,
            "retries": row.retries,
            "failed_requests": row.failed_requests,
            "oom": row.oom,
            "confidence": row.confidence,
        }
        for run, row in zip(runs, rows, strict=True)
    ]


def requests_in(trace: Any) -> list[int]:
    """The sizes that were asked for, in order: whether two runs are of the same program."""
    device = trace.devices[trace.main_device]
    allocations = device.allocations
    found: list[int] = allocations.requested_bytes[allocations.born >= 0].tolist()
    return found


def compare(prediction: dict[str, Any], folder: Path, base_requests: list[int]) -> dict[str, Any]:
    """One prediction beside its measurement."""
    run = Run(**prediction["run"])
    if not Path(f"{folder / run.name}.json").exists():
        return prediction | {"verdict": "not measured"}
    truth, trace = truth_of(folder / run.name), read(folder / run.name)
    stats, asked = truth["stats"], requests_in(trace)
    died = "oom_message" in truth
    peak, low, high = (
        stats["reserved_bytes.all.peak"],
        prediction["low_bytes"],
        prediction["high_bytes"],
    )
    if asked != base_requests[: len(asked)]:
        verdict = "asked for other memory"  # after a caught failure, a program is another
    elif peak == prediction["peak_reserved_bytes"]:
        verdict = "equal"
    else:
        verdict = "in the range" if low <= peak <= high else "outside the range"
    measured = {
        "peak_reserved_bytes": peak,
        "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
        "retries": stats["num_alloc_retries"],
        "failed_requests": stats["num_ooms"],
        "died": died,
    }
    right = None if prediction["oom"] is None else prediction["oom"] == died
    return prediction | {"measured": measured, "verdict": verdict, "outcome_is_right": right}


def self_replay(name: str, folder: Path) -> dict[str, Any]:
    """One recording under its own settings: exact or not, and whether the counters are those of
    memory_stats.
    """
    from vramlens.errors import VramlensError
    from vramlens.replay import prove

    trace, truth = read(folder / name), truth_of(folder / name)
    try:
        proven = prove(trace, trace.devices[trace.main_device])
    except VramlensError as error:
        return {"name": name, "exact": False, "counters_that_differ": [], "why": str(error)}
    recorded, summary, stats = proven.recorded, proven.replay.summary, truth["stats"]
    figures = {
        "reserved_bytes.all.peak": "peak_reserved",
        "allocated_bytes.all.peak": "peak_allocated",
    }
    figures |= {
        "requested_bytes.all.peak": "peak_requested",
        "active_bytes.all.peak": "peak_active",
    }
    figures |= {
        "num_ooms": "ooms",
        "num_alloc_retries": "retries",
        "num_device_alloc": "device_allocs",
    }
    differ = (
        []
        if recorded.warm
        else [key for key, ours in figures.items() if stats.get(key) != summary[ours]]
    )
    first = recorded.first_difference
    return {
        "name": name,
        "exact": recorded.exact,
        "warm": recorded.warm,
        "addresses": recorded.addresses,
        "segment_events": recorded.segment_events,
        "failed_requests": recorded.failed_requests,
        "counters_that_differ": differ,
        "why": ""
        if first is None
        else f"event {first.event}: {first.recorded}; replayed {first.simulated}",
    }


def recorder_runs() -> list[Run]:
    """What a bare snapshot may lack, recorded by vramlens."""
    cap = 300 * MIB + MIB
    gc = "garbage_collection_threshold:0.6"
    return [
        Run("pooled", "", cap, 5, "vramlens"),
        Run("pooled", "expandable_segments:True", cap, 5, "vramlens"),
        Run("waiting", gc, cap, 6, "vramlens"),
        Run("waiting", f"{gc},max_split_size_mb:32", cap, 6, "vramlens"),
        Run("late", "", 0, 7, "vramlens"),
        Run("late", "expandable_segments:True", 0, 7, "vramlens"),
        Run("fuzz", "", 0, 8, "vramlens"),
        Run("lstm", "", 0, 9, "vramlens"),
    ]


def fuzz_runs() -> list[Run]:
    """Random requests under every setting; with a limit that is met, failures and retries."""
    cap = 300 * MIB + MIB
    runs = [Run("pooled", conf, 0, 3) for conf in CONFS]
    runs += [Run("pooled", conf, cap, 4) for conf in CONFS]
    return runs + [Run("waiting", conf, cap, 4) for conf in (*LIMITED, "max_split_size_mb:32")]


def hard_runs() -> list[Run]:
    """What once did not replay exactly, and its like: collections under a limit, retries with
    pools and streams.
    """
    gc, expandable = "garbage_collection_threshold:0.7", "expandable_segments:True"
    runs = [
        Run("fuzz", gc, cap * MIB, seed) for seed, cap in ((1, 751), (1, 625), (2, 803), (2, 669))
    ]
    runs += [Run("pooled", expandable, 301 * MIB, seed) for seed in (4, *range(11, 19))]
    runs += [
        Run("pooled", f"{expandable},max_split_size_mb:64", 301 * MIB, seed) for seed in (11, 12)
    ]
    runs += [Run("pooled", gc, 301 * MIB, seed) for seed in (11, 12, 13)]
    runs += [Run("waiting", gc, 301 * MIB, seed) for seed in (11, 12, 13)]
    return [*runs, Run("pooled", "", 301 * MIB, 11), *(Run(name) for name in (*MODELS, "fuzz"))]


def size(count: int) -> str:
    return f"{count / MIB:,.1f} MiB"


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| program | setting | limit | predicted peak reserved | range | measured | verdict | retries (measured) |"
        " outcome (measured) |",
        "|---|---|---:|---:|---|---:|---|---:|---|",
    ]
    for row in rows:
        run, measured = Run(**row["run"]), row.get("measured")
        told = {True: "dies", False: "lives", None: "cannot tell"}[row["oom"]]
        found = "–" if measured is None else "dies" if measured["died"] else "lives"
        lines.append(
            f"| {run.program} {run.seed} | {run.conf or 'default'} | {size(run.cap_bytes) if run.cap_bytes else ''} |"
            f" {size(row['peak_reserved_bytes'])} | {size(row['low_bytes'])} to {size(row['high_bytes'])} |"
            f" {size(measured['peak_reserved_bytes']) if measured else '–'} | {row['verdict']} |"
            f" {row['retries']} ({measured['retries'] if measured else '–'}) | {told} ({found}) |"
        )
    return "\n".join(lines)


def proof_table(proofs: list[dict[str, Any]]) -> str:
    lines = ["| recording | replay | counters that differ | why |", "|---|---|---|---|"]
    for proof in proofs:
        said = "exact" if proof["exact"] else "not exact"
        differ = ", ".join(proof.get("counters_that_differ", []))
        lines.append(f"| {proof['name']} | {said} | {differ} | {proof['why']} |")
    return "\n".join(lines)


def summary(rows: list[dict[str, Any]], proofs: list[dict[str, Any]]) -> str:
    measured = [
        row for row in rows if row["verdict"] not in ("not measured", "asked for other memory")
    ]
    equal = sum(row["verdict"] == "equal" for row in measured)
    inside = sum(row["verdict"] != "outside the range" for row in measured)
    expandable = [row for row in measured if "expandable" in row["run"]["conf"]]
    widths = sorted(
        (row["high_bytes"] - row["low_bytes"]) / row["peak_reserved_bytes"] for row in measured
    )
    wrong = sum(row["outcome_is_right"] is False for row in measured)
    told = sum(row["outcome_is_right"] is not None for row in measured)
    exact = sum(proof["exact"] for proof in proofs)
    counters = sum(proof["exact"] and not proof["counters_that_differ"] for proof in proofs)
    others = sum(row["verdict"] == "asked for other memory" for row in rows)
    return "\n".join(
        [
            f"- {len(measured)} predictions measured: {equal} equal to the byte, {inside} inside the printed range;"
            f" under expandable segments {sum(row['verdict'] == 'equal' for row in expandable)} of {len(expandable)}"
            " equal",
            f"- median width of the range {widths[len(widths) // 2]:.3%}, widest {widths[-1]:.2%}"
            if widths
            else "",
            f"- live or die: told in {told}, wrong in {wrong}",
            f"- {others} more asked for other memory than the recorded run, so they cannot be compared",
            f"- {len(proofs)} recordings replayed under their own settings: {exact} exact, {counters} of them with"
            " every counter of memory_stats",
        ]
    )


def keep(proofs: list[dict[str, Any]], folder: Path, kept: Path) -> None:
    """One archive of recordings with their truths: those that did not come out first, then the
    small ones.
    """
    wrong = [
        proof["name"] for proof in proofs if not proof["exact"] or proof["counters_that_differ"]
    ]
    right = [proof["name"] for proof in proofs if proof["name"] not in wrong]
    left = KEPT_BYTES
    with tarfile.open(kept, "w") as archive:
        for name in (*wrong, *right):
            for ending in (".vram", ".pickle.xz"):
                source = Path(f"{folder / name}{ending}")
                if not source.exists() or (name in right and source.stat().st_size > SMALL_BYTES):
                    continue
                left -= source.stat().st_size
                if left > 0:
                    archive.add(source, f"{name}{ending}")
                    archive.add(f"{folder / name}.json", f"{name}.json")


def bare_of(name: str, folder: Path) -> str:
    """The snapshot inside of a .vram, as a recording without what vramlens adds."""
    bare = f"{name}__bare"
    with zipfile.ZipFile(f"{folder / name}.vram") as archive:
        Path(f"{folder / bare}.pickle.xz").write_bytes(
            lzma.compress(archive.read("snapshot.pickle"), preset=2)
        )
        meta = json.loads(archive.read("meta.json"))
    truth = truth_of(folder / name) | {
        "stats": meta["devices"]["0"]["stats"]
    }  # it may be written at a failure
    for each in (name, bare):
        Path(f"{folder / each}.json").write_text(json.dumps(truth))
    return bare


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--seed", type=int, default=1, help="of the programs that are predicted")
    parser.add_argument("--perform", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.perform:
        return perform(Run(**json.loads(arguments.perform)), arguments.out)
    until = time.monotonic() + ENOUGH_S
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp())
    rows: list[dict[str, Any]] = []
    recorded: list[Run] = []
    if "models" in arguments.only:
        seed = arguments.seed
        bases = [
            *(Run(name, seed=seed) for name in MODELS),
            Run("fuzz", seed=seed),
            Run("fuzz", seed=seed + 1),
        ]
        bases = perform_all(bases, folder, until)
        predictions = [row for base in bases for row in predict(base, folder)]
        text = json.dumps(predictions, indent=1)
        digest = hashlib.sha256(text.encode()).hexdigest()
        (out / "predictions.json").write_text(text)
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        (out / "predictions.sha256").write_text(
            f"{digest}  predictions.json  written {when} UTC, before measuring\n"
        )
        print(
            f"{len(predictions)} predictions written before measuring, sha256 {digest}", flush=True
        )
        recorded = [*bases, *perform_all([Run(**row["run"]) for row in predictions], folder, until)]
        asked = {(base.program, base.seed): requests_in(read(folder / base.name)) for base in bases}
        rows = [
            compare(row, folder, asked[row["run"]["program"], row["run"]["seed"]])
            for row in predictions
        ]
        (out / "measured.json").write_text(json.dumps(rows, indent=1))
    if "fuzz" in arguments.only:
        recorded += perform_all(fuzz_runs(), folder, until + 30)
    if "hard" in arguments.only:
        recorded += perform_all(hard_runs(), folder, until + 35)
    names = [run.name for run in recorded]
    if "recorder" in arguments.only:
        by_vramlens = perform_all(recorder_runs(), folder / "by_vramlens", until + 45)
        for run in by_vramlens:
            names += [
                f"by_vramlens/{run.name}",
                f"by_vramlens/{bare_of(run.name, folder / 'by_vramlens')}",
            ]
    proofs = [self_replay(name, folder) for name in names]
    report = f"{summary(rows, proofs)}\n\n{table(rows)}\n\n{proof_table(proofs)}\n"
    (out / "results.md").write_text(report)
    (out / "results.json").write_text(json.dumps({"what_ifs": rows, "proofs": proofs}, indent=1))
    keep(proofs, folder, out / "recordings.tar")
    print(report)
    return None


if __name__ == "__main__":
    main()
