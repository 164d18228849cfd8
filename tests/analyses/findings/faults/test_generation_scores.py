"""Scores that transformers' generate() keeps of each token, beside what it keeps anyway."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import Frame, MadeRun, finding_of
from vramlens.analyses.finding import Finding

LIBRARY = "/opt/lib/python3.12/site-packages/transformers"
CALLER: tuple[Frame, ...] = (
    (f"{LIBRARY}/generation/utils.py", 3045, "_sample"),
    (f"{LIBRARY}/generation/utils.py", 2802, "generate"),
    ("/home/user/answer.py", 60, "answers"),
)
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": (("/home/user/answer.py", 20, "load"),),
    "scores": ((f"{LIBRARY}/generation/logits_process.py", 594, "__call__"), *CALLER),
    "cache": ((f"{LIBRARY}/cache_utils.py", 110, "update"), *CALLER),
}


def told(folder: Path, part: str, *, tokens: int, mib: float) -> Finding | None:
    """What is told where each token left something of a part, beside 1,000 MiB of weights."""
    run = MadeRun(FRAMES)
    run.asks("weights", 1000)
    for _ in range(tokens):
        run.asks(part, mib)
    return finding_of(run.fails(part, 20, folder), "generation_scores")


def test_the_scores_of_every_token(tmp_path: Path) -> None:
    finding = told(tmp_path, "scores", tokens=60, mib=16)
    assert finding is not None
    assert finding.verdict == "likely"
    assert finding.bytes == 60 * 16 << 20
    assert finding.title == (
        "generate() keeps 960.00 MiB (49%) of the 60 tokens that it has made: 16.00 MiB each, as large"
        " as their scores"
    )
    assert "leave out output_scores=True" in (finding.fix or "")
    assert finding.place is not None
    assert finding.place.line == 60


def test_its_cache_is_needed(tmp_path: Path) -> None:
    assert told(tmp_path, "cache", tokens=60, mib=16) is None


@pytest.mark.parametrize(
    ("tokens", "mib", "is_told"), [(8, 50, True), (7, 50, False), (20, 17, True), (20, 16, False)]
)
def test_a_few_copies_are_those_of_one_token(
    tmp_path: Path, tokens: int, mib: float, is_told: bool
) -> None:
    assert (told(tmp_path, "scores", tokens=tokens, mib=mib) is not None) == is_told


def test_a_call_among_the_arguments_of_another_made_none_of_it(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 200)
    for _ in range(60):
        run.asks("scores", 16)
    line = {
        ("/home/user/answer.py", 60): "out = model.generate(prompts.repeat_interleave(8, dim=0))"
    }
    answer = run.fails("scores", 20, tmp_path, source=line)
    assert finding_of(answer, "costly_expression") is None
    assert answer.findings[0].id == "generation_scores"
