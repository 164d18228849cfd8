"""Fixes that are told, made, and run: the leak is gone, or smaller by what was promised."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from leaks.told_fix import edited
from leaks.wild import wild_programs
from leaks.wild_scores import WildNursery

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="forks; counts with glibc"
)

PROGRAMS = (
    "f_loss_components", "running_loss", "rnn_hidden", "u_dqn_losses", "u_running_mean_graph",
    "x_xl_mems",
)  # fmt: skip


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WildNursery]:
    nursery = WildNursery(str(tmp_path_factory.mktemp("fixed")), ())
    yield nursery
    nursery.close()


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_the_fix_promises_is_what_it_frees(nursery: WildNursery, name: str) -> None:
    program = wild_programs()[name]
    (leak, *_) = nursery.run(program, "live")["report"]["leaks"]
    fixed = edited(program, leak)
    assert fixed is not None, leak["fix"]
    answer = nursery.run(fixed, "live")
    assert "error" not in answer, answer["error"]
    left = [one for one in answer["report"]["leaks"] if one["verdict"] in ("proven", "likely")]
    promised = leak["bytes_per_step"] - leak["fix_bytes_per_step"]
    assert sum(one["bytes_per_step"] for one in left) <= promised + 0.05 * leak["bytes_per_step"]
