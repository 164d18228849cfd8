"""A slice of the mutants of ``tests/fuzz/mutants``, with fixed seeds: a few of every format, in
this process.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from mutants.formats import write_job
from mutants.values import NUMBERS, as_json, damaged, mutated
from mutants.worker import NAMES, run_mutant

pytest.importorskip("duckdb")
_SEED, _OF_EACH = 16, 6


@pytest.mark.parametrize("form", NAMES)
def test_mutants_are_answered_or_refused(form: str) -> None:
    outcomes = [run_mutant(_SEED, index, form) for index in range(_OF_EACH)]
    # Escapes in other output than one-line errors are counted by the command alone.
    assert [outcome for outcome in outcomes if outcome.fault not in ("", "raw escape")] == []


def test_the_same_number_is_the_same_mutant() -> None:
    from random import Random

    value = {"a": [1, 2.5, "x", None, {"b": list(NUMBERS[:5])}]}
    assert as_json(mutated(value, Random(7))) == as_json(mutated(value, Random(7)))
    assert damaged(b"abc" * 100, Random(7)) == damaged(b"abc" * 100, Random(7))
    assert value == {"a": [1, 2.5, "x", None, {"b": list(NUMBERS[:5])}]}


def test_copies_of_copies_do_not_grow_without_end(tmp_path: Path) -> None:
    from random import Random

    write_job(tmp_path, Random("9113:454"))  # was a report of 157 MB
    (report,) = tmp_path.rglob("error.json")
    assert report.stat().st_size < 20_000_000
