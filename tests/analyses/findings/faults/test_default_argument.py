"""What a default argument collects, beside defaults that are a function's own from the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.analyses.finding import Finding
from vramlens.units import MIB

USER = "/home/user/serve.py"
FRAMES: dict[str, tuple[Frame, ...]] = {
    "data": ((USER, 5, "load"),),
    "step": ((USER, 20, "step"), (USER, 60, "main")),
    "helper": ((USER, 40, "forward"), (USER, 20, "step"), (USER, 60, "main")),
    "training": ((USER, 25, "training_step"), (USER, 60, "main")),
    "bound helper": ((USER, 40, "forward"), (USER, 30, "<lambda>"), (USER, 61, "main")),
    "library's": ((USER, 40, "forward"), (f"{TORCH}/optim/sgd.py", 70, "step"), (USER, 62, "main")),
    "main": ((USER, 63, "main"),),
    "bind": ((USER, 30, "<lambda>"), (USER, 61, "main")),
}
COUNT, SIZE = 8, 50


def told(folder: Path, part: str, name: str) -> Finding | None:
    """What is told of tensors in defaults that some part of the program made.

    Args:
        name: what each is called; ``{}`` is its number.
    """
    run = MadeRun(FRAMES)
    run.asks("data", 100)
    for number in range(COUNT):
        run.asks(part, SIZE, name=name.format(number))
    return finding_of(run.fails("data", 60, folder), "default_argument")


@pytest.mark.parametrize(
    "name",
    [
        "step.__defaults__[0][{}]",
        "Trainer.step.__kwdefaults__['history'][{}]",
        "main.<locals>.step.__defaults__[1].rows[{}]",
    ],
)
def test_what_the_calls_of_a_function_add_to_its_default(tmp_path: Path, name: str) -> None:
    finding = told(tmp_path, "step", name)
    assert finding is not None
    assert finding.bytes == COUNT * SIZE * MIB
    assert finding.title.startswith(f"8 tensors in a default argument of {name.split('.__')[0]}()")


def test_a_lambdas_own_default_is_no_collection(tmp_path: Path) -> None:
    """``bind = lambda x: lambda y, x=x.cuda(): x + y``: each has one tensor, made by a lambda."""
    assert told(tmp_path, "bind", "<lambda>.<locals>.<lambda>.__defaults__[0]") is None


def test_a_default_that_was_full_from_the_start_is_data(tmp_path: Path) -> None:
    """``def step(batch, tables=load()):`` has all of it before its first call."""
    assert told(tmp_path, "data", "step.__defaults__[0][{}]") is None


def test_what_helpers_of_the_function_made_for_it(tmp_path: Path) -> None:
    """``kept.append(model(x).detach())``, where ``forward`` is the user's own, too."""
    finding = told(tmp_path, "helper", "step.__defaults__[0][{}]")
    assert finding is not None
    assert finding.bytes == COUNT * SIZE * MIB
    assert finding.place is not None
    assert (finding.place.function, finding.place.line) == ("step", 20)


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("step", "training_step.__defaults__[0][{}]"),
        ("training", "step.__defaults__[0][{}]"),
        ("library's", "step.__defaults__[0][{}]"),
        ("bound helper", "Bank.<lambda>.__defaults__[0][{}]"),  # another lambda may have called
    ],
)
def test_a_function_with_a_name_like_it_is_another(tmp_path: Path, part: str, name: str) -> None:
    assert told(tmp_path, part, name) is None


@pytest.mark.parametrize("part", ["main", "helper"])
def test_what_is_called_once_collects_for_one_call(tmp_path: Path, part: str) -> None:
    """``def main(rows=[]):`` has all of the program inside."""
    assert told(tmp_path, part, "main.__defaults__[0][{}]") is None
