"""What made-up numbers decide lowers the range as far as a run may go, and no further.

Each program runs as it is, and once more with what its numbers decide left out: what is sure of the
former is the peak of the latter.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from vramlens.prediction.own_process import in_a_process
from vramlens.prediction.predicted_run import Question
from vramlens.prediction.script import predict_script

pytest.importorskip("torch")

MIB = 1 << 20
START = """
import sys, torch
MOST = int(sys.argv[1])
def matrix():
    return torch.randn(4096, 4096, device="cuda")  # 64 MiB
weight, start = matrix().requires_grad_(), matrix()
"""
LOWERED = {
    "a loop with a cap": """
        x, residual, turns = start, 1.0, 0
        while residual > 1e-4 and turns < MOST:  # decides
            new = torch.tanh(x @ weight)
            residual = ((new - x).norm() / new.norm()).item()
            x = new
            turns += 1
        x.sum().backward()
    """,
    "a loop that a break ends": """
        x = start
        for turn in range(MOST):
            x = torch.tanh(x @ weight) + start
            size = x.norm()
            if size.item() < 1e-4:  # decides
                break
        loss = x.sum()
        loss.backward()
    """,
    "a return in a loop": """
        def solve(x):
            for turn in range(MOST):
                x = torch.sigmoid(x @ weight)
                with torch.no_grad():
                    size = float(x.norm())
                if size < 1e-4:  # decides
                    return x
            return x
        first = solve(start) * 2
        solve(first).sum().backward()
    """,
    "two runs of one loop": """
        def solve(x):
            residual, turns = 1.0, 0
            while residual > 1e-4 and turns < MOST:  # decides
                x = torch.tanh(x @ weight)
                residual, turns = x.norm().item(), turns + 1
            return x
        for batch in range(2):
            (solve(start) * 2).sum().backward()
            del weight.grad
    """,
    "a test that asks first": """
        x, turns, kept = start, 1, []
        while x.norm().item() > 1e-4 and turns < MOST:  # decides
            kept.append(x * 2)
            turns += 1
        y = x * 2
    """,
    "numbers that are only shown": """
        x = start
        for turn in range(MOST):
            print(x.norm().item())
            x = torch.tanh(x @ weight)
            size = x.norm().item()
            print(x.mean().item())
            if size < 1e-4:  # decides
                break
        x.sum().backward()
    """,
    "a branch that keeps a clone": """
        best, kept = float("inf"), None
        for epoch in range(3):
            loss = (start @ weight).norm().item()
            if loss < best and MOST > 1:  # decides
                best, kept = loss, weight.detach().clone()
    """,
    "clones that take each other's place, and patience": """
        best, waited, kept = float("inf"), 0, {}
        for epoch in range(3):
            held_out = start.norm().item()
            if held_out < best and MOST > 1:  # decides
                best, waited = held_out, 0
                kept = {"weight": weight.detach().clone()}
            else:
                waited += 1
                if waited >= 10:  # decides
                    break
    """,
    "a chain that a loop makes longer": """
        with torch.no_grad():
            x, held, turns = start * 2, [], 0
            while True:
                x = torch.tanh(x)
                held.append(x + 1)
                turns += 1
                if x.norm().item() < 1e-4 or turns == MOST:  # decides
                    break
            del held
            y = x * 2
    """,
}
AS_IT_IS = {
    "training that stops early": """
        optimizer = torch.optim.Adam([weight])
        for step in range(6):
            loss = (start @ weight).tanh().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if loss.item() < 1e-3:  # decides
                break
    """,
    "a loop that keeps nothing": """
        with torch.no_grad():
            x, residual = start, 1.0
            del start
            while residual > 0.99:  # decides
                new = torch.tanh(x @ weight)
                residual, x = new.norm().item(), new
            image = torch.cat([x, x * 2])
    """,
    "a guard around the backward": """
        import math
        for step in range(3):
            loss = (start @ weight).tanh().mean()
            if math.isfinite(loss.item()):  # decides
                loss.backward()
    """,
    "a guard around the step": """
        optimizer = torch.optim.Adam([weight])
        for step in range(3):
            loss = (start @ weight).tanh().mean()
            loss.backward()
            if loss.item() < 100:  # decides
                optimizer.step()
    """,
}


def program(folder: Path, source: str) -> tuple[Path, list[int]]:
    """A program, and the lines of it that decide."""
    text = START + "\n".join(line[8:] for line in source.splitlines()) + "\n"
    path = folder / "program.py"
    path.write_text(text)
    return path, [at for at, line in enumerate(text.splitlines(), 1) if "# decides" in line]


def predicted(path: Path, most: int) -> dict[str, Any]:
    answer: dict[str, Any] = in_a_process(partial(prediction_of, str(path), most))
    return answer


def prediction_of(path: str, most: int) -> dict[str, Any]:
    question = Question(cards=(2 << 30, 24 << 30))
    prediction = predict_script(path, [str(most)], question, most_steps=None)
    return {**prediction.to_json(), **prediction.peaks, "words": str(prediction)}


@pytest.mark.parametrize("source", LOWERED.values(), ids=LOWERED)
def test_the_range_begins_where_numbers_decide_for_the_least(source: str, tmp_path: Path) -> None:
    path, lines = program(tmp_path, source)
    whole, least = predicted(path, 40), predicted(path, 1)
    assert abs(whole["sure_bytes"] - least["requested_bytes"]) < MIB
    assert whole["low_bytes"] < whole["sure_bytes"] + 22 * MIB
    assert whole["high_bytes"] > whole["reserved_bytes"]
    has_room = whole["reserved_bytes"] < 500 * MIB
    assert [card["fits"] for card in whole["cards"]] == [True if has_room else None, True]
    assert [decision["line"] for decision in whole["made_up_decisions"]] == lines
    assert {loop["line"] for loop in whole["made_up_turns"]} <= set(lines)
    assert not whole["turns_are_open"]


OPEN = """
    x, residual, step = start, 1.0, 0.1
    while residual > 0.98:  # decides
        x = torch.tanh(x @ weight)
        residual = x.norm().item()
    x.sum().backward()
"""


@pytest.mark.parametrize(
    ("loop", "fits"),
    [
        ("while residual > 0.98:", [None, None]),
        ("while residual > 0.98 and x.dim() == 2:", [None, True]),
    ],
)
def test_no_card_is_sure_to_fit_where_nothing_else_ends_a_loop(
    loop: str, fits: list[bool | None], tmp_path: Path
) -> None:
    """On made-up numbers it takes 21 turns; nobody knows how many a run takes."""
    source = OPEN.replace("while residual > 0.98:", loop).replace("\n", "\n    ")
    path, _ = program(tmp_path, source)
    answer = predicted(path, 0)
    assert answer["turns_are_open"] is (None in fits[1:])
    assert [card["fits"] for card in answer["cards"]] == fits
    assert [loop["turns"] for loop in answer["made_up_turns"]] == [21]
    assert "predicted with 21 iterations at" in " ".join(answer["words"].split())


@pytest.mark.parametrize("source", AS_IT_IS.values(), ids=AS_IT_IS)
def test_what_a_run_needs_anyway_is_not_left_out(source: str, tmp_path: Path) -> None:
    path, lines = program(tmp_path, source)
    answer = predicted(path, 1)
    assert answer["sure_bytes"] is None
    assert answer["low_bytes"] > 0.99 * answer["requested_bytes"]
    assert [decision["line"] for decision in answer["made_up_decisions"]] == lines


def test_gradients_are_kept_where_the_backward_ends(tmp_path: Path) -> None:
    """A gradient that is not contiguous is copied by a node without a number of its own."""
    source = """
        x, turns, residual = start, 0, 1.0
        flipped = torch.randn(4096, 4096, device="cuda").t().requires_grad_()
        while residual > 1e-4 and turns < MOST:  # decides
            x, turns = torch.tanh(x * flipped), turns + 1
            residual = x.norm().item()
        x.sum().backward()
        assert flipped.grad is not None
    """
    path, _ = program(tmp_path, source)
    whole, least = predicted(path, 40), predicted(path, 1)
    assert abs(whole["sure_bytes"] - least["requested_bytes"]) < MIB
