"""Predicts the measured programs again and compares, without a GPU.

    python score.py FILE.json [NAME...]

All programs of six tables of docs/predict_measured.md, or those named; each in a process of its own, forked
from one that has imported everything. Truth is what an H200 said (``measured.json``, and those of
``fresh``, ``held_out``, ``spring`` and ``summer``) or an H100 (``autumn_measured.json``), with
PyTorch 2.11.
"""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from forked_answer import answer_of_fork

HERE = Path(__file__).parent
PATIENCE_S = 900
_RANKS = 2
_COMPARED = ("allocated_bytes", "reserved_bytes")
_OPTIONS = {
    "view": ("--view",),
    "accumulate": ("--accumulate", "2"),
    "keep": ("--keep",),
    "fp32": ("--fp32",),
    "checkpoint": ("--checkpoint",),
}


@dataclass(frozen=True)
class MeasuredProgram:
    """A program that ran on a card.

    Attributes:
        name: its table and its name in it.
        path: its script.
        arguments: of the script.
        rank: its rank of two; None where it was one process.
        truth: what PyTorch's allocator said.
        gpu: the card.
    """

    name: str
    path: Path
    arguments: tuple[str, ...]
    rank: int | None
    truth: dict[str, Any]
    gpu: str = "h200"


def measured_programs() -> list[MeasuredProgram]:
    """All programs of the tables."""
    return [
        *_of_folder("held_out"),
        *_fresh(),
        *_plain(),
        *_of_folder("autumn", "h100"),
        *_of_folder("spring"),
        *_of_folder("summer"),
    ]


def _truth(name: str) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((HERE / name).read_text())
    return {name: row for name, row in figures.items() if "allocated_bytes" in row}


def _of_folder(folder: str, gpu: str = "h200") -> list[MeasuredProgram]:
    """The programs of a folder, each of which was measured by itself."""
    return [
        MeasuredProgram(f"{folder}/{name}", HERE / folder / f"{name}.py", (), None, row, gpu)
        for name, row in _truth(f"{folder}_measured.json").items()
    ]


def _fresh() -> list[MeasuredProgram]:
    programs = []
    for name, row in _truth("fresh_measured.json").items():
        base, _, rank = name.partition(".rank")
        script, arguments = base, ()
        if not (HERE / "fresh" / f"{base}.py").exists():
            script, _, option = base.rpartition("_")
            arguments = _OPTIONS.get(option, ())
        path = HERE / "fresh" / f"{script}.py"
        if path.exists():
            number = int(rank) if rank else None
            programs.append(MeasuredProgram(f"fresh/{name}", path, arguments, number, row))
    return programs


def _plain() -> list[MeasuredProgram]:
    return [
        MeasuredProgram(f"programs/{name}", HERE / "programs.py", (name,), None, row)
        for name, row in _truth("measured.json").items()
    ]


def prediction_of(program: MeasuredProgram) -> dict[str, Any]:
    """A program's predicted peaks and range."""
    from vramlens.prediction.predicted_run import Question
    from vramlens.prediction.ranks.lone_process_group import RankPlace
    from vramlens.prediction.script import predict_script

    place = None if program.rank is None else RankPlace(program.rank, _RANKS)
    question = Question(gpu=program.gpu, torch_version="2.11", place=place)
    predicted = predict_script(str(program.path), program.arguments, question, None)
    return {
        **predicted.peaks,
        "low_bytes": predicted.low_bytes,
        "high_bytes": predicted.high_bytes,
        "seconds": round(predicted.seconds, 1),
        "basis": list(predicted.basis[1:]),
        "not_modelled": [[unknown.what, unknown.bytes] for unknown in predicted.not_modelled],
        "steps": predicted.steps,
    }


def line_of(name: str, predicted: dict[str, Any], truth: dict[str, Any]) -> str:
    """One program's misses, as a line."""
    if "error" in predicted:
        return f"{name:36} {predicted['error']}"
    shares = [predicted[key] / truth[key] - 1 for key in _COMPARED]
    reserved = truth["reserved_bytes"]
    is_inside = predicted["low_bytes"] <= reserved <= predicted["high_bytes"]
    low, high = predicted["low_bytes"] / reserved - 1, predicted["high_bytes"] / reserved - 1
    return (
        f"{name:36} allocated {shares[0]:+8.2%} reserved {shares[1]:+8.2%}"
        f" range {low:+8.2%} {high:+8.2%} {'' if is_inside else 'OUTSIDE'}"
    )


def main() -> None:
    for module in ("torch", "torch._dynamo", "transformers", "torch_geometric", "torchvision"):
        with contextlib.suppress(ImportError):
            __import__(module)
    path = Path(sys.argv[1])
    wanted = sys.argv[2:]
    answer: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for program in measured_programs():
        if wanted and not any(word in program.name for word in wanted):
            continue
        predicted = answer_of_fork(partial(prediction_of, program), PATIENCE_S)
        truth = {f"measured_{key}": program.truth[key] for key in _COMPARED}
        answer[program.name] = {**predicted, **truth}
        print(line_of(program.name, predicted, program.truth), flush=True)
        path.write_text(json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()
