"""Whether programs fit the cards that they are predicted to fit, by running them within such limits.

    python fits.py predict predicted.json FOLDER...     # on any machine
    python fits.py live lived.json FOLDER...            # on a GPU
    python fits.py score predicted.json lived.json

Limits lie between the peaks allocated and reserved that a program had without one
(``FOLDER_measured.json``): there the peak reserved alone would say that it does not fit. A process
takes ``OUTSIDE`` beside the allocator: the middle of what a prediction allows for.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

OUTSIDE = 675 << 20
SHARES = (0.03, 0.15, 0.5)
"""Of what is reserved beyond what is allocated: where the limits lie."""
HERE = Path(__file__).parent
_LIMITED = """
import runpy, sys, torch
limit = int(sys.argv[1])
del sys.argv[:2]
sys.path[0] = sys.argv[0].rpartition("/")[0]
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction(limit / total)
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    stats = torch.cuda.memory_stats()
    print("RETRIES", stats["num_alloc_retries"], "OOMS", stats["num_ooms"], flush=True)
"""


def limits_of(folders: list[str]) -> dict[str, list[int]]:
    """The limits of each program, in bytes that the allocator may reserve."""
    limits = {}
    for folder in folders:
        measured = json.loads((HERE / f"{folder}_measured.json").read_text())
        for name, figures in measured.items():
            path = f"{folder}/{name}.py"
            if figures.get("error") or not (HERE / path).exists():
                continue
            allocated = figures["allocated_bytes"]
            cached = figures["reserved_bytes"] - allocated
            if cached > 0.15 * allocated:
                limits[path] = [int(allocated + share * cached) >> 20 << 20 for share in SHARES]
    return limits


def predicted(path: str, limits: list[int]) -> dict[str, Any]:
    """What the prediction says of cards that leave these limits."""
    cards = ",".join(f"{(limit + OUTSIDE) >> 20}MiB" for limit in limits)
    command = [sys.executable, "-m", "vramlens", "predict", str(HERE / path), "--json"]
    command += ["--gpu", "h200", "--torch", "2.11", "--cards", cards]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_seconds_left())
    if done.returncode:
        return {"refused": done.stderr[-300:]}
    prediction = json.loads(done.stdout)["prediction"]
    cards_by_limit = {str(card["total_bytes"] - OUTSIDE): card for card in prediction["cards"]}
    return {
        "low_bytes": prediction["low_bytes"],
        "high_bytes": prediction["high_bytes"],
        "fits": {limit: card["fits"] for limit, card in cards_by_limit.items()},
        "retries": {limit: card["retries"] for limit, card in cards_by_limit.items()},
    }


def lived(path: str, limits: list[int]) -> dict[str, Any]:
    """What became of the program within these limits."""
    rows: dict[str, Any] = {}
    for limit in limits:
        command = [sys.executable, "-c", _LIMITED, str(limit), str(HERE / path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_seconds_left())
        except subprocess.TimeoutExpired:
            rows[str(limit)] = {"unknown": "no time"}
            continue
        counts = [line.split() for line in done.stdout.splitlines() if line.startswith("RETRIES")]
        is_out_of_memory = "out of memory" in done.stderr
        if not counts or (done.returncode and not is_out_of_memory):
            rows[str(limit)] = {"unknown": done.stderr[-300:]}
            continue
        rows[str(limit)] = {
            "lived": done.returncode == 0,
            "retries": int(counts[-1][1]),
            "caught": int(counts[-1][3]) if done.returncode == 0 else 0,
        }
    return rows


_ENDS = time.monotonic() + float(os.environ.get("SECONDS_LEFT", "500"))


def _seconds_left() -> float:
    return max(1.0, _ENDS - time.monotonic())


def _gather(ask: Any, path: str, folders: list[str]) -> None:
    limits = limits_of(folders)
    answers: dict[str, Any] = {}

    def answer(name: str) -> None:
        try:
            answers[name] = ask(name, limits[name])
        except subprocess.TimeoutExpired:
            answers[name] = {"refused": "no time"}

    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS", "2"))) as pool:
        list(pool.map(answer, limits))
    Path(path).write_text(json.dumps(dict(sorted(answers.items())), indent=1))


def score(predicted_path: str, lived_path: str) -> None:
    """How many limits were judged right, beside the rule that compares the peak reserved.

    A program that caught a failure lived another life, and is not counted.
    """
    predictions = json.loads(Path(predicted_path).read_text())
    outcomes = json.loads(Path(lived_path).read_text())
    counts: dict[tuple[str, str], int] = {}
    by_peak: dict[tuple[str, str], int] = {}
    for name, outcome in sorted(outcomes.items()):
        prediction = predictions.get(name, {"refused": "not predicted"})
        if "refused" in prediction or "refused" in outcome:
            print(f"{name}: not compared")
            continue
        for limit, row in outcome.items():
            if "lived" not in row or row["caught"]:
                continue
            says = {True: "fits", False: "does not fit", None: "may fit"}[prediction["fits"][limit]]
            was = "lived" if row["lived"] else "died"
            counts[says, was] = counts.get((says, was), 0) + 1
            peak_says = _by_peak(prediction, int(limit))
            by_peak[peak_says, was] = by_peak.get((peak_says, was), 0) + 1
            is_wrong = (says, was) in (("fits", "died"), ("does not fit", "lived"))
            print(
                f"{name} within {int(limit) >> 20:,} MiB: {says}"
                f" ({prediction['retries'][limit]} retries), {was} ({row['retries']} retries)"
                + (" WRONG" if is_wrong else "")
            )
    for title, rule in (("replayed within", counts), ("by the peak reserved", by_peak)):
        print(title)
        for (says, was), count in sorted(rule.items()):
            print(f"  {says}, {was}: {count}")


def _by_peak(prediction: dict[str, Any], limit: int) -> str:
    """What the range of the peak reserved alone would say of the card."""
    least, most = 450 << 20, 900 << 20
    if prediction["high_bytes"] + most <= limit + OUTSIDE:
        return "fits"
    return "does not fit" if prediction["low_bytes"] + least > limit + OUTSIDE else "may fit"


def main() -> None:
    """Runs one of the three."""
    verb, path, *rest = sys.argv[1:]
    if verb == "score":
        score(path, rest[0])
    else:
        _gather({"predict": predicted, "live": lived}[verb], path, rest)


if __name__ == "__main__":
    main()
