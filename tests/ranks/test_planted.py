"""A small part of benchmarks/ranks.py: planted causes in several sizes and recordings, and clean
jobs of every kind.
"""

from __future__ import annotations

import pytest

from support.planted_ranks import BASES, CAUSES, CLEAN, NotPossible, base_of, job
from vramlens.ranks import compare

SMALL = [name for name in BASES if name.startswith(("found", "captured"))]
JOBS = [
    (name, (0.04, 0.2)[number % 2], (8, 64, 3)[number % 3], SMALL[number % len(SMALL)])
    for number, name in enumerate(CAUSES)
]


@pytest.mark.parametrize(("name", "share", "world", "base"), JOBS)
def test_a_planted_cause_is_named(name: str, share: float, world: int, base: str) -> None:
    try:
        ranks, odd = job(base_of(base), name, share, world, seed=world, marks=world != 3)
    except NotPossible:
        ranks, odd = job(
            base_of("found/grad_accumulation.pickle.xz"), name, 0.04, world, seed=world
        )
    found = compare(ranks).differences
    _, cause, line, _ = CAUSES[name]
    assert [(one.ranks, one.cause) for one in found] == [((odd,), cause)]
    if line is not None:
        place = found[0].place
        assert place is not None
        assert (place.file, place.line) == line


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", CLEAN)
def test_a_clean_job_raises_no_alarm(kind: str, seed: int) -> None:
    base = base_of(("found/eval_graph_fixed.pickle.xz", "captured/checkpointed.vram")[seed])
    assert compare(CLEAN[kind](base, 4, seed)).differences == ()
