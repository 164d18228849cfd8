"""The check of collectives, on processes of this machine and gloo."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vramlens.capture.doctor import nccl_check as collectives_check
from vramlens.capture.doctor.nccl_check import check_collectives

torch = pytest.importorskip("torch")


def test_two_ranks_get_the_right_values() -> None:
    found = check_collectives(2, "gloo")
    assert found.error == ""
    assert found.right
    assert [one.name for one in found.operations] == [
        "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all",
    ]  # fmt: skip
    assert all(
        speed.seconds > 0 and speed.bus_bytes_per_s > 0
        for one in found.operations
        for speed in one.speeds
    )
    assert found.to_dict()["right"] is True


@pytest.mark.parametrize("world", [0, 1])
def test_it_needs_two(world: int) -> None:
    found = check_collectives(world)
    assert not found.right
    assert "two GPUs or more" in found.error


def test_a_rank_that_cannot_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives_check.sys, "executable", "/bin/false")
    assert "rank 0 failed" in check_collectives(2, "gloo").error


CHATTY = """#!{python}
import json, os, sys, time
rank, done = int(sys.argv[5]), {done!r}
print("NCCL INFO " * 30_000, flush=True)  # more than a pipe holds
if rank:
    open(done, "w").close()
while not os.path.exists(done):  # as in a collective, which ends when all are there
    time.sleep(0.01)
print(json.dumps({{"library": None, "operations": [], "held_bytes": None, "counted": None}}))
"""


def test_ranks_that_say_much_do_not_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text(CHATTY.format(python=sys.executable, done=str(tmp_path / "done")))
    program.chmod(0o700)
    monkeypatch.setattr(collectives_check.sys, "executable", str(program))
    found = check_collectives(2, "gloo", patience_s=10)
    assert found.error == ""
    assert found.right


def test_a_hang_ends() -> None:
    found = check_collectives(2, "gloo", patience_s=0.2)
    assert "did not end" in found.error
