"""Each fix that is told, made as its user would type it: the program still runs, and malloc no
longer grows by more than the fix leaves.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from live.holder.fixed_programs import CASES, Case

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts with glibc")

PROGRAMS = Path(__file__).with_name("fixed_programs.py")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process of its own says of all cases: its heap is small, and searched quickly."""
    folder = tmp_path_factory.mktemp("programs")
    paths = os.pathsep.join((str(PROGRAMS.parents[2]), *filter(None, sys.path)))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, PROGRAMS, folder], env=environment, check=True, timeout=300)
    return json.loads((folder / "outcomes.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "_"))
def test_a_fix_ends_the_growth(outcomes: dict[str, Any], case: Case) -> None:
    outcome = outcomes[case.name]
    assert "error" not in outcome, outcome["error"]
    assert case.advice in outcome["fix"]
    assert outcome["growth"] <= outcome["stays"] + 0.1 * outcome["bytes_per_step"]
