"""Which lines decided by made-up values: followed through the source from where they were asked for.

In the sources below ``# asked`` marks a line that was given such a value, ``# decides`` one that is to
be told.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vramlens import load
from vramlens.prediction.made_up_decisions import Decision, made_up_decisions, places_of

DECIDING = {
    "a loop's end": """
        relative = beta.item() / norm_b  # asked
        if relative < options.tol:  # decides
            break
    """,
    "a tensor itself": """
        while residual > tol:  # asked # decides
            residual = step(residual)
    """,
    "one line": """
        if residual < tol: done = True  # asked # decides
    """,
    "what a turn leaves": """
        error = 1.0
        while error > 1e-6:  # decides
            error = float(norm)  # asked
    """,
    "a count of turns": """
        count = int(lengths.max())  # asked
        for _ in range(count):  # decides
            step()
    """,
    "what a function returns": """
        def residual_norm(x):
            return x.norm().item()  # asked
        error = residual_norm(x)
        if error < tol:  # decides
            stop()
    """,
    "an argument, and an attribute": """
        class Stopper:
            def __call__(self, loss):
                if loss < self.best:  # decides
                    self.best = loss
        stopper = Stopper()
        stopper(loss.item())  # asked
    """,
    "parts of a tuple that cannot be told apart": """
        best, *rest = loss.item(), 0, 1  # asked
        if rest[0] > 3:  # decides
            stop()
    """,
    "one of several values": """
        total, count = loss.item(), 3  # asked
        if total > best or count > 9:  # decides
            save()
    """,
}
QUIET = {
    "what stands beside it": """
        if step % 10 == 0: print(loss.item())  # asked
    """,
    "a check": """
        if (labels < 0).any():  # asked
            raise ValueError("labels")
        assert loss.item() < 10  # asked
    """,
    "words": """
        if loss.item() < best:  # asked
            print("better")
    """,
    "a name that was given something else": """
        count = mask.sum().item()  # asked
        count = len(data)
        while count > 0:
            count -= 1
    """,
    "a shape": """
        x = x + alpha.item() * p  # asked
        if x.shape[0] > 3:
            x = x[:3]
    """,
    "its neighbor in a tuple": """
        best, (waited, count) = loss.item(), (0, 1)  # asked
        while waited < 3 and count > 0:
            waited += 1
    """,
    "how many there are": """
        losses.append(loss.item())  # asked
        if len(losses) > 3:
            losses.pop(0)
    """,
    "other functions": """
        def train():
            loss = model().item()  # asked
            return 1
        def evaluate(loss):
            if loss < 3:
                pass
        evaluate(3)
    """,
}


def decided(folder: Path, source: str) -> tuple[list[int], list[int]]:
    """The lines that are told, and those that are marked."""
    lines = [line[8:] for line in source.splitlines()]
    path = folder / "program.py"
    path.write_text("for turn in range(9):\n" + "\n".join(f"    {line}" for line in lines))
    marked = {
        mark: [at for at, line in enumerate(lines, 2) if mark in line]
        for mark in ("# asked", "# decides")
    }
    found = made_up_decisions([str(path)], {str(path): set(marked["# asked"])})
    return sorted({decision.line for decision in found}), marked["# decides"]


@pytest.mark.parametrize("source", DECIDING.values(), ids=DECIDING)
def test_what_decides_is_told(source: str, tmp_path: Path) -> None:
    told, marked = decided(tmp_path, source)
    assert told == marked != []


@pytest.mark.parametrize("source", QUIET.values(), ids=QUIET)
def test_what_decides_nothing_is_not_told(source: str, tmp_path: Path) -> None:
    assert decided(tmp_path, source) == ([], [])


def test_what_one_file_asks_for_another_decides_by(tmp_path: Path) -> None:
    helper, program, unreadable = (tmp_path / name for name in ("a.py", "b.py", "c.py"))
    helper.write_text("def norm(x):\n    return x.item()\n")
    program.write_text("import a\nwhile a.norm(x) > 1:\n    x = x / 2\n")
    unreadable.write_text("if (:\n")
    files = [str(path) for path in (program, helper, unreadable)]
    found = made_up_decisions(files, {files[1]: {2}})
    loop = Decision(files[0], 2, is_loop=True, first=2, last=3, asked_by=2, has_other_end=False)
    assert found == (loop,)
    assert places_of(found) == ((files[0], 2),)


SOLVER = """
import torch
x = torch.randn(1000, device="cuda")
for turn in range(5):
    if torch.isnan(x).any() or not torch.isfinite(x).all():
        break
    tokens = x.view(10, 100).argmax(-1)
    if (tokens == 7).all():
        break
    norm = x.norm()
"""
ENDS = """
    if norm.item() / 3 < 0.4:
        break
"""


@pytest.mark.parametrize(("more", "lines"), [("", []), (ENDS, [12])])
def test_a_prediction_tells_what_a_made_up_number_decided(
    more: str, lines: list[int], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "solve.py"
    path.write_text(SOLVER + more)
    written = tmp_path / "p.vram"
    options = ["--steps", "3", "-o", str(written)]
    command = [sys.executable, "-m", "vramlens", "predict", *options, str(path)]
    told = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert told.returncode == 0, told.stderr
    words = " ".join(told.stdout.split())
    assert ("such a number decides solve.py:12: a run may take more" in words) == bool(lines)
    assert words.count("made up") == 1
    asked = subprocess.run(
        [*command[:4], "--json", *command[4:]], capture_output=True, text=True, timeout=300
    )
    meta = load(written).meta
    told_places = () if meta.decisions is None else meta.decisions.places
    assert told_places == tuple((str(path), line) for line in lines)
    decisions = json.loads(asked.stdout)["prediction"]["made_up_decisions"]
    assert decisions == [{"file": str(path), "line": line} for line in lines]


def test_what_a_chosen_branch_sets_is_decided_too(tmp_path: Path) -> None:
    """A solver's step width: its loop ends by the time, which the widths add up to."""
    path = tmp_path / "solver.py"
    path.write_text(
        "time, width = 0.0, 0.1\n"
        "while time < 1.0:\n"
        "    error = difference.norm().item()\n"
        "    if error > 0.1:\n"
        "        width = width / 2\n"
        "    time += width\n"
        "    other = 1\n"
        "    if other:\n"
        "        print(time)\n"
    )
    found = made_up_decisions([str(path)], {str(path): {3}})
    assert [(decision.line, decision.is_loop) for decision in found] == [(2, True), (4, False)]
    assert not found[0].has_other_end
