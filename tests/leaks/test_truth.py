"""The truth of the corpus, witnessed without vramlens: bytes that the process holds, and
PyTorch's own operators.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leaks.answers import Answers, Run
from leaks.corpus import programs
from leaks.harness import GOOD_ENOUGH

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="counts bytes with glibc's malloc"
)
NOISE_BYTES = 8192  # a step: nodes of the graph and Python's own objects
LEAKS = [program for program in programs().values() if program.leaks]
LOOK_ALIKES = [program for program in programs().values() if not program.leaks]
# A part of the programs, which change seldom; with VRAMLENS_TEST_ALL=1, as before a new one is
# kept, all of them.
_ALL = bool(os.environ.get("VRAMLENS_TEST_ALL"))
WITNESSED = LEAKS if _ALL else LEAKS[::3]
STILL = LOOK_ALIKES if _ALL else LOOK_ALIKES[::3]
CURED = LEAKS if _ALL else LEAKS[::4]
COUNTED = [program for program in LEAKS if program.stacks][::6]


def _each(*runs: tuple[Run, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("runs", runs, ids=lambda runs: str(runs[0]))


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest) -> Iterator[Answers]:
    with Answers.for_tests(request) as answers:
        yield answers


def test_corpus_is_large_and_wide() -> None:
    classes = {each for program in LEAKS for leak in program.leaks for each in leak.classes}
    assert len(LEAKS) >= 50
    assert len(LOOK_ALIKES) >= 18
    assert classes >= {
        "graph",
        "container",
        "cycle",
        "autograd_cycle",
        "hook",
        "exception",
        "cache",
        "closure",
        "thread",
    }


def test_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "leaks_corpus.md").read_text()
    for program in programs().values():
        truth = (
            "; ".join(f"{leak.bytes_per_step:,} bytes per step" for leak in program.leaks[:1])
            or program.reason
        )
        assert any(
            line.startswith(f"| {program.name} |") and truth in line for line in page.splitlines()
        ), program.name


def test_what_runs_tells_nothing() -> None:
    for program in programs().values():
        assert not any(word in program.text for word in ("TRUTH", "KEEPS", "ALLOCATES", "FIX:")), (
            program.name
        )
        source = (Path(__file__).with_name("programs") / f"{program.name}.py").read_text()
        assert len(program.text.splitlines()) == len(source.splitlines()), program.name


@_each(*((Run(each.name, "witness"),) for each in WITNESSED))
def test_leak(answers: Answers, runs: tuple[Run]) -> None:
    """It grows by as much as is said, at the lines that are marked."""
    program = programs()[runs[0].name]
    expected = sum(leak.bytes_per_step for leak in program.leaks)
    answer = answers.of(runs[0])
    assert "error" not in answer, answer["error"]
    kept = answer["report"]["kept"]
    if program.stacks:
        (leak,) = program.leaks
        assert kept["bytes_per_step"] == pytest.approx(expected, rel=0.002)
        assert leak.allocates <= set(kept["accepted"])
        assert kept["heaviest"] in leak.allocates
    else:
        assert _slope(answer) == pytest.approx(expected, rel=GOOD_ENOUGH, abs=3 * NOISE_BYTES)


@_each(*((Run(each.name, "bytes", fixed=True),) for each in CURED))
def test_cure(answers: Answers, runs: tuple[Run]) -> None:
    """With the marked line cured nothing grows."""
    expected = sum(leak.bytes_per_step for leak in programs()[runs[0].name].leaks)
    answer = answers.of(runs[0])
    assert "error" not in answer, answer["error"]
    assert _slope(answer) < GOOD_ENOUGH * expected + NOISE_BYTES / 4


@_each(*((Run(each.name, "bytes"),) for each in COUNTED))
def test_bytes_by_two_witnesses(answers: Answers, runs: tuple[Run]) -> None:
    """What malloc counts agrees with what the operators' storages sum to."""
    (leak,) = programs()[runs[0].name].leaks
    assert _slope(answers.of(runs[0])) == pytest.approx(
        leak.bytes_per_step, rel=GOOD_ENOUGH, abs=NOISE_BYTES
    )


@_each(*((Run(each.name, "bytes"),) for each in STILL))
def test_look_alike(answers: Answers, runs: tuple[Run]) -> None:
    """Nothing that was not reached before is reached in the last third; a cache that still fills
    says so itself.
    """
    answer = answers.of(runs[0])
    assert "error" not in answer, answer["error"]
    counted = answer["report"]["bytes"]
    third = len(counted) * 2 // 3
    grown = max(counted[third:]) - max(counted[:third])
    assert programs()[runs[0].name].settled == (grown < 3 * NOISE_BYTES)


def _slope(answer: dict[str, Any]) -> float:
    """Bytes a step over the later half."""
    counted = answer["report"]["bytes"]
    half = len(counted) // 2
    return (counted[-1] - counted[half]) / (len(counted) - 1 - half)
