"""Holds the verdict on failures against what really lived.

    python benchmarks/verdicts.py FOLDER...      # folders with a truth.json and the recordings that it names
    python benchmarks/verdicts.py FOLDER --rows  # every failure, one a line

``truth.json`` holds by program ``peak_reserved_bytes`` (of the whole run without a limit) and
``limits``: by name of a recording ``cap_bytes``, ``recorded`` and, by setting, what happened when
it was really run: lives, dies or null; then ``replayed`` may hold what the whole run, replayed
    under that limit, leads to.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from vramlens import load
from vramlens.report.explain.json import to_json

CONFS = (
    "expandable_segments:True",
    "max_split_size_mb:128",
    "garbage_collection_threshold:0.8",
    "roundup_power2_divisions:8",
)
NEAR = 0.1
"""Of the truth: a need that is no further off counts as near."""


def failures_in(folder: Path) -> list[tuple[str, dict[str, Any], int]]:
    """The failures of a folder that were recorded: name, what really happened, the whole run's
    peak.
    """
    truth = json.loads((folder / "truth.json").read_text())
    return [
        (name, limit, program["peak_reserved_bytes"])
        for program in truth.values()
        for name, limit in program["limits"].items()
        if limit["recorded"] == "dies" and (folder / f"{name}.vram").exists()
    ]


def advised_settings(answer: dict[str, Any]) -> list[str]:
    """The settings that the answer says carry the run."""
    settings = answer["oom"].get("settings")
    if settings is not None:
        return [row["conf"] for row in settings if row["lives"] is True]
    fixes = " ".join(one["fix"] or "" for one in answer["findings"] if one["id"] == "settings_help")
    return [conf for conf in CONFS if f"={conf}" in fixes]


def score_settings(oom: dict[str, Any], advised: list[str], truth: dict[str, Any]) -> Counter[str]:
    """How many settings were told rightly and wrongly."""
    counts: Counter[str] = Counter()
    told = {row["conf"]: row["lives"] for row in oom.get("settings") or ()}
    told = told or dict.fromkeys(advised, True)
    for conf in CONFS:
        really, said = truth.get(conf) or truth.get("replayed", {}).get(conf), told.get(conf)
        if really is None:
            continue
        if said is None:
            counts[f"open, {really}"] += 1
        else:
            counts[
                "right"
                if said == (really == "lives")
                else f"WRONG: called {'lives' if said else 'dies'}"
            ] += 1
    return counts


def step_need(folder: Path, name: str) -> int | None:
    """What the failed step really took: reserved bytes until its end, in the run without a limit;
    None where that is not known.
    """
    path = folder / f"{name.split('.')[0]}.whole.vram"
    if not path.exists():
        return None
    failed, whole = load(folder / f"{name}.vram").attribution(), load(path).attribution()
    failed_event = np.array([failed.device.out_of_memory[-1].event])
    step = int(failed.steps.of(failed_event)[0]) if len(failed.steps) else 0
    if step >= len(whole.steps):
        return None
    return int(whole.device.reserved_curve[: int(whole.steps.ends[step])].max())


def score(folder: Path, name: str, truth: dict[str, Any], whole_bytes: int) -> dict[str, Any]:
    """One failure: what was told of it, and how far that is right."""
    began = time.perf_counter()
    answer = to_json(load(folder / f"{name}.vram").explain())
    seconds = time.perf_counter() - began
    oom = answer["oom"]
    advised = advised_settings(answer)
    need = oom.get("need") or {}
    peak, low, high = (need.get(key) for key in ("peak_reserved_bytes", "low_bytes", "high_bytes"))
    first = next((one for one in answer["findings"] if one["fix"]), None)
    really = None if peak is None else step_need(folder, name)
    return {
        "name": name,
        "seconds": seconds,
        "cause": oom["cause"],
        "basis": need.get("basis"),
        "settings": score_settings(oom, advised, truth),
        "off": None if peak is None else peak / whole_bytes - 1,
        "low": None if low is None else low / whole_bytes - 1,
        "high": None if high is None else high / whole_bytes - 1,
        "holds": None if low is None or high is None else low <= whole_bytes <= high,
        "step_off": None if really is None else peak / really - 1,
        "step_holds": None if really is None or high is None else low <= really <= high,
        "first": None if first is None else f"{first['id']}: {first['fix'][:90]}",
        "leak_first": first is not None and first["id"] == "leak",
        "lives_with": [conf for conf in CONFS if truth.get(conf) == "lives"],
    }


def print_row(row: dict[str, Any]) -> None:
    """One failure as a line."""
    need = row["basis"] or "-"
    if row["off"] is not None:
        need += f" {100 * row['off']:+.1f}%"
    if row["low"] is not None:
        high = "" if row["high"] is None else f"{100 * row['high']:+.0f}"
        need += f" [{100 * row['low']:+.0f}..{high}]"
    told = ", ".join(f"{what} {count}" for what, count in sorted(row["settings"].items()))
    print(
        f"{row['name']:20} {row['cause']:13} {need:34} {told:50} {row['first']} {row['seconds']:.2f} s"
    )


def main() -> None:
    """Prints the table of every folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--rows", action="store_true", help="every failure, too")
    parser.add_argument("--only", default="", help="names that hold this")
    arguments = parser.parse_args()
    for folder in arguments.folders:
        failures = [one for one in failures_in(folder) if arguments.only in one[0]]
        rows = [score(folder, *failure) for failure in failures]
        if arguments.rows:
            for row in rows:
                print_row(row)
        settings: Counter[str] = sum((row["settings"] for row in rows), Counter())
        aligned = [row for row in rows if row["basis"] == "earlier_step" and row["off"] is not None]
        ranges = [row["holds"] for row in rows if row["holds"] is not None]
        print(f"{folder}: {len(rows)} failures")
        print("  causes:", dict(Counter(row["cause"] for row in rows)))
        print("  leak told first:", sum(row["leak_first"] for row in rows))
        print("  settings:", dict(sorted(settings.items())))
        print("  need by basis:", dict(Counter(str(row["basis"]) for row in rows)))
        print(f"  need of aligned steps within {NEAR:.0%} of the whole run's peak:",
              sum(abs(row["off"]) <= NEAR for row in aligned), "of", len(aligned))  # fmt: skip
        print("  ranges that hold the whole run's peak:", sum(ranges), "of", len(ranges))
        near_step = [row for row in rows if row["step_off"] is not None]
        print(f"  need of aligned steps within {NEAR:.0%} of what the failed step took:",
              sum(abs(row["step_off"]) <= NEAR for row in near_step), "of", len(near_step))  # fmt: skip
        print("  ... and its range holds that:",
              sum(bool(row["step_holds"]) for row in near_step), "of", len(near_step))  # fmt: skip
        print(f"  slowest: {max((row['seconds'] for row in rows), default=0):.2f} s")


if __name__ == "__main__":
    main()
