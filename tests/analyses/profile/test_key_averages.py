"""The table of operators is that of ``prof.key_averages()``: a real training run, compared row by
row.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[2] / "support"

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trace")
    subprocess.run(
        [sys.executable, SUPPORT / "profiled_training.py", folder],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return json.loads((folder / "answer.json").read_text())


def test_by_operator(compared):
    assert compared["operators"] == []
    assert compared["compared"] > 40


def test_by_shape(compared):
    assert compared["shapes"] == []
    assert compared["compared_shapes"] > 100


def test_by_line_the_sums_stay(compared):
    whole, by_line = compared["self_cpu_ns"]
    assert whole == by_line
    assert any("profiled_training.py" in line for line in compared["lines"])
