"""A sample of the wild programs: each way of running them gives the right answer."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from leaks.wild import wild_programs
from leaks.wild_scores import WildNursery, score

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="forks; counts with glibc"
)

LEAKS = [
    ("every_third", "script"),  # in a main() that is the program's last statement
    ("child_module_store", "script"),  # in a function that main() ends with
    ("server_sessions", "script"),  # no optimizer: a step is a call of the model
    ("preallocated_not", "live"),
    ("giant_bound", "live"),
    ("object_array", "live"),
    ("asyncio_call_later", "live"),
    ("u_growing_cat", "script"),  # made anew in the step that has not ended
    ("v_replay_without_bound", "live"),  # a batch drawn from the buffer holds its entries, too
    ("script_list", "no_leaks"),
    ("x_xl_mems", "live"),  # the values are cut to their length, the graph is not
    ("x_object_array_tuples", "live"),
]
LOOK_ALIKES = [
    ("evicted_graphs_filling", "live"),
    ("preallocated_ring", "live"),
    ("replay_capacity", "no_leaks"),
    ("u_none_lengths", "no_leaks"),  # oneDNN keeps a kernel for each length
]


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WildNursery]:
    nursery = WildNursery(str(tmp_path_factory.mktemp("wild")), ())
    yield nursery
    nursery.close()


def test_corpus() -> None:
    programs = wild_programs().values()
    assert sum(program.leaks for program in programs) >= 80
    assert sum(not program.leaks for program in programs) >= 55
    for program in programs:
        assert program.text.count("tick()") >= 1, program.name
        assert program.text.count("done()") == 1, program.name
        assert "KEEPS" not in program.script, program.name
        assert bool(program.keeps) == (program.leaks and program.owners != ("-",)), program.name


@pytest.mark.parametrize(("name", "way"), LEAKS)
def test_leak(nursery: WildNursery, name: str, way: str) -> None:
    program = wild_programs()[name]
    answer = nursery.run(program, way)
    assert program.bytes_per_step is not None
    assert all(score(program, answer, program.bytes_per_step).values()), answer


@pytest.mark.parametrize(("name", "way"), LOOK_ALIKES)
def test_look_alike(nursery: WildNursery, name: str, way: str) -> None:
    answer = nursery.run(wild_programs()[name], way)
    assert not any(score(wild_programs()[name], answer, 0).values()), answer
