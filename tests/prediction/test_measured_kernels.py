"""Kernels whose requests hang on the sizes that they are given, against an H200 with PyTorch 2.11:
the cases of ``kernels.py`` in benchmarks/prediction, and its figures.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.programs import python

pytest.importorskip("torch")

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "prediction"
PROGRAM = "import json, sys, kernels; print(json.dumps(kernels.scores(sys.argv[1:])))"
FEWEST = {
    # kind: how many of the measured cases are exact, and within 3%
    "topk": (105, 119),
    "layer_norm": (42, 42),
    "masked": (32, 32),
    "foreach_norm": (3, 3),
    "depthwise_forward": (161, 164),
    "depthwise_both": (121, 141),
    "line_depthwise_both": (9, 12),
    "transposed_forward": (5, 17),
    "unique_c": (0, 3),
}


@pytest.fixture(scope="module")
def likenesses() -> Any:
    done = python(BENCHMARK, "-c", PROGRAM, *FEWEST)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", FEWEST)
def test_kernels_ask_for_what_they_asked_for_on_a_card(likenesses: Any, kind: str) -> None:
    exact, near = (likenesses[kind].count(word) for word in ("exact", "near"))
    fewest_exact, fewest_near = FEWEST[kind]
    assert exact >= fewest_exact
    assert exact + near >= fewest_near
