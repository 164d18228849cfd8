"""Single operators: what each asks for on a GPU, and what a prediction says.

    python operators.py measure FILE.json [--workers 12] [--seconds 230]   on a GPU; needs torch only
    python operators.py predict FILE.json [--workers 2]                    without one
    python operators.py compare MEASURED.json PREDICTED.json [--all]
    python operators.py score MEASURED.json PREDICTED.json...              by family, as a table
    python operators.py dry FILE.json                                      on the CPU: are they valid?

Measured on an H100 on 2026-11-25: ``operators_measured.json.xz``. ``--only WORD...`` takes the cases
whose names have all of the words. Each case is run twice, and measured the second time: without
gradients, forward, and backward (``operator_cases``).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import lzma
import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from operator_cases import Case, all_cases
from operator_cases.families import family_of
from operator_cases.phases import CudaMeter, NoMeter, PredictedMeter, figures_of
from operator_cases.pool import Worker, answers

MIB = 1 << 20
PHASES = ("inference", "forward", "backward")
_SHARE, _LEAST = 0.03, MIB
"""A case differs where it is off by more than both."""
_EQUAL = 1 << 10
ALL = "**all**"
_WRITE_EVERY_S = 15


def on_gpu() -> Callable[[Case], dict[str, Any]]:
    """What measures cases in a process of its own; after an error of the device it is replaced."""
    torch.set_num_threads(1)
    meter = CudaMeter()

    def measure(case: Case) -> dict[str, Any]:
        figures = figures_of(case, "cuda", meter)
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            figures["gone"] = True
        return figures

    return measure


def on_cpu() -> Callable[[Case], dict[str, Any]]:
    """What runs cases on the CPU, once."""
    torch.set_num_threads(1)
    return lambda case: figures_of(case, "cpu", NoMeter(), turns=1)


def predicted() -> Callable[[Case], dict[str, Any]]:
    """What predicts cases, in a process where PyTorch believes in an H100."""
    from vramlens.cards.known_cards import card_named
    from vramlens.prediction.predicted_run import PredictedRun

    torch.set_num_threads(1)
    run = PredictedRun(card_named("h100"))
    meter = PredictedMeter(run.log)
    going = contextlib.ExitStack()
    going.enter_context(run.going())
    gc.freeze()

    def predict(case: Case, going: Any = going) -> dict[str, Any]:
        return figures_of(case, "cuda", meter)

    return predict


_WORKERS: dict[str, tuple[Worker, float]] = {
    "measure": (on_gpu, 40),
    "predict": (predicted, 30),
    "dry": (on_cpu, 60),
}
"""By command: what works, and how long one case may take."""


def gathered(command: str, path: str, cases: list[Case], workers: int, seconds: float) -> None:
    """Writes the figures of cases to a file, also while they come."""
    worker, patience_s = _WORKERS[command]
    gc.collect()
    gc.freeze()  # workers look only at what is theirs
    began = written = time.monotonic()
    answer: dict[str, Any] = {"torch": torch.__version__, "cases": {}}
    for number, figures in answers(cases, worker, workers, patience_s, seconds):
        answer["cases"][cases[number].key] = figures
        if time.monotonic() - written > _WRITE_EVERY_S:
            written = time.monotonic()
            _write(path, answer)
            print(f"{len(answer['cases'])} of {len(cases)}, {written - began:.0f} s", flush=True)
    answer["seconds"] = round(time.monotonic() - began, 1)
    _write(path, answer)
    errors = [key for key, figures in answer["cases"].items() if "error" in figures]
    print(f"{len(answer['cases'])} of {len(cases)} cases, {len(errors)} with an error, {path}")
    if command != "measure":
        for key in errors:
            print(f"  {key}: {answer['cases'][key]['error']}")


def _write(path: str, answer: dict[str, Any]) -> None:
    part = f"{path}.part"
    with open(part, "w") as file:
        json.dump(answer, file, separators=(",", ":"))
    os.replace(part, path)


def figures_in(path: str | Path) -> dict[str, Any]:
    """What was written to a file, compressed or not."""
    opened: Any = lzma.open if str(path).endswith(".xz") else open
    with opened(path, "rt") as file:
        figures: dict[str, Any] = json.load(file)
    return figures


def compared(measured: dict[str, Any], predicted: dict[str, Any], shows_all: bool) -> None:
    """Prints which cases differ, by operator, the worst first."""
    rows: dict[str, list[tuple[float, str]]] = defaultdict(list)
    refused, counts = [], defaultdict(int)
    for key, truth in measured["cases"].items():
        ours = predicted["cases"].get(key)
        if ours is None:
            counts["not predicted"] += 1
            continue
        for phase in PHASES:
            if phase not in truth:
                continue
            counts["phases measured"] += 1
            if phase not in ours:
                refused.append(f"{key} {phase}: {ours.get('error', 'it is missing')}")
                continue
            off, words = difference(truth[phase], ours[phase])
            counts["off"] += bool(words)
            if words:
                rows[key.partition("/")[0].partition(" ")[0]].append(
                    (off, f"{key} {phase}: {words}")
                )
    for operator, lines in sorted(rows.items(), key=lambda item: -max(off for off, _ in item[1])):
        print(f"{operator}: {len(lines)}")
        lines.sort(reverse=True)
        for _, line in lines if shows_all else lines[:4]:
            print(f"  {line}")
    print(f"\nmeasured, not predicted: {len(refused)}")
    for line in refused:
        print(f"  {line}")
    print(dict(counts))


def difference(truth: dict[str, Any], ours: dict[str, Any]) -> tuple[float, str]:
    """How far a phase is off in bytes, with words where that is too much; requests that differ
    are listed.
    """
    worst, words = 0.0, []
    for figure in ("peak", "kept"):
        off = ours[figure] - truth[figure]
        if abs(off) > max(_LEAST, _SHARE * abs(truth[figure])):
            worst = max(worst, abs(off))
            share = f" ({off / truth[figure]:+.0%})" if truth[figure] else ""
            words.append(
                f"{figure} {ours[figure] / MIB:.1f} of {truth[figure] / MIB:.1f} MiB{share}"
            )
    if words and "low" in ours:
        words.append(f"range {ours['low'] / MIB:.1f} to {ours['high'] / MIB:.1f}")
    if words:
        words += [f"\n      GPU  {_in_mib(truth)}", f"\n      ours {_in_mib(ours)}"]
    return worst, "; ".join(words)


def scored(measured: dict[str, Any], predictions: list[dict[str, Any]]) -> None:
    """Prints how many phases are equal, near, off and refused, by family, of each prediction."""
    tables = [_counts_of(measured["cases"], predicted["cases"]) for predicted in predictions]
    heads = " | ".join(["equal", "near", "off", "refused"] * len(tables))
    print(f"| family | phases | {heads} |\n|---|{'---:|' * (1 + 4 * len(tables))}")
    for family in (*sorted(set(tables[0]) - {ALL}), ALL):
        rows = [table[family] for table in tables]
        figures = [f"{number:,}" for row in rows for number in row]
        print(f"| {family} | {sum(rows[0]):,} | {' | '.join(figures)} |")


def _counts_of(truths: dict[str, Any], predicted: dict[str, Any]) -> dict[str, list[int]]:
    """Phases that are equal to a KiB, within the limits, off and refused, by family and phase."""
    table: dict[str, list[int]] = defaultdict(lambda: [0] * 4)
    for key, truth in truths.items():
        for phase in PHASES:
            if phase in truth:
                place = _place_of(truth[phase], predicted.get(key, {}).get(phase))
                for row in (family_of(key), f"*{phase}*", ALL):
                    table[row][place] += 1
    return table


def _place_of(truth: dict[str, Any], ours: dict[str, Any] | None) -> int:
    if ours is None:
        return 3
    if difference(truth, ours)[1]:
        return 2
    off = max(abs(ours[figure] - truth[figure]) for figure in ("peak", "kept"))
    return int(off > _EQUAL)


def _in_mib(figures: dict[str, Any]) -> str:
    return " ".join(f"{size / MIB:+.2f}" for size in figures["requests"][:24])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=[*_WORKERS, "compare", "score"])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--all", action="store_true", help="every line of every operator")
    options = parser.parse_args()
    if options.command in ("compare", "score"):
        measured, *predictions = map(figures_in, options.files)
        if options.command == "score":
            scored(measured, predictions)
        else:
            compared(measured, predictions[0], options.all)
        return
    cases = all_cases()
    if options.only:
        cases = [case for case in cases if all(word in case.key for word in options.only)]
    gathered(options.command, options.files[0], cases, options.workers, options.seconds)


if __name__ == "__main__":
    main()
