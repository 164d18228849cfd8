"""The begin of a sentence: a word has a capital letter there, and code keeps its own."""

from __future__ import annotations

import pytest

from vramlens.ground.verdict import Verdict
from vramlens.report.wording import capitalized, with_verdict


@pytest.mark.parametrize(
    ("text", "begin"),
    [
        ("memory ran out in it", "Memory ran"),
        ("a size of 1 is repeated", "A size"),
        ("hidden @ weight.T makes a number", "hidden @"),
        ("x - y broadcasts", "x - y"),
        ("a, n = torch.where(mask) makes a number", "a, n"),
        ("cuBLAS asked for it", "cuBLAS"),
        ("vramlens run", "vramlens"),
        ("adj.to_dense() makes every zero", "adj.to_dense()"),
    ],
)
def test_code_is_not_capitalized(text: str, begin: str) -> None:
    assert capitalized(text).startswith(begin)


@pytest.mark.parametrize(
    ("title", "begin"),
    [
        ("Loading puts all of it there", "Likely: loading"),
        ("A batch 0.3x this size fits", "Likely: a batch"),
        ("F.one_hot(kmers) makes a number", "Likely: F.one_hot"),
        ("Kernel @ x makes a number", "Likely: Kernel @"),
        ("CUDA graphs keep a pool", "Likely: CUDA"),
    ],
)
def test_code_after_a_verdict_keeps_its_letters(title: str, begin: str) -> None:
    assert with_verdict(Verdict.LIKELY, title).startswith(begin)
    assert with_verdict(Verdict.PROVEN, title) == title
