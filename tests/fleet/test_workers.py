"""The map over ranks: here, on processes, and on a real Dask cluster of this machine, one of
whose workers is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from support.fleet_tasks import always_dies, dies_once, fails, slowly
from support.recordings import DATA
from vramlens.errors import UsageError
from vramlens.fleet.job import summary_of
from vramlens.fleet.workers import for_each, workers

PATH = str(DATA / "ranks/leak_rank1/leak_rank1.rank0.pickle.xz")


def test_failures_are_their_ranks(tmp_path: Path) -> None:
    done, failed = for_each({rank: (str(tmp_path), rank) for rank in range(4)}, fails)
    assert done == {0: 0, 3: 3}
    assert failed == {1: "no such thing", 2: "RuntimeError: two"}


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    shares: list[float] = []
    for_each({rank: (str(tmp_path), rank) for rank in range(4)}, fails, progress=shares.append)
    assert shares == [0.25, 0.5, 0.75, 1.0]


def test_a_process_that_dies_costs_no_rank(tmp_path: Path) -> None:
    with workers("2") as pool:
        done, failed = for_each({rank: (str(tmp_path), rank) for rank in range(6)}, dies_once, pool)
    assert done == {rank: rank * 10 for rank in range(6)}
    assert failed == {}


def test_one_that_always_dies_is_told(tmp_path: Path) -> None:
    with workers("2") as pool:
        done, failed = for_each({3: (str(tmp_path), 3), 4: (str(tmp_path), 4)}, always_dies, pool)
    assert 3 not in done
    assert failed[3] == "its worker died, three times"


def test_a_process_that_dies_while_ranks_are_handed_out(tmp_path: Path) -> None:
    (tmp_path / "died").touch()  # of itself none dies
    with workers("2") as pool:
        assert isinstance(pool, ProcessPoolExecutor)
        hand_out = pool.submit

        def submit(*task: Any) -> Future[Any]:
            if task[-1] == 3:
                raise BrokenProcessPool
            return hand_out(*task)

        pool.submit = submit  # type: ignore[method-assign]
        done, failed = for_each({rank: (str(tmp_path), rank) for rank in range(6)}, dies_once, pool)
    assert done == {rank: rank * 10 for rank in range(6)}
    assert failed == {}


@pytest.mark.parametrize("where", ["x", "0", "spark://a:1"])
def test_what_is_no_place_for_work(where: str) -> None:
    with pytest.raises(UsageError, match="--workers"), workers(where):
        pass


def test_a_cluster_with_a_worker_killed_gives_what_this_machine_gives() -> None:
    distributed = pytest.importorskip("distributed")
    tasks = {rank: (PATH, rank) for rank in range(16)}
    here, _ = for_each({0: (PATH, 0)}, summary_of)
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            host="127.0.0.1",
        ) as cluster,
        workers(cluster.scheduler_address.replace("tcp://", "dask://")) as pool,
    ):
        with distributed.Client(cluster) as client:
            victim = next(iter(client.run(os.getpid).values()))

        def kill() -> None:
            time.sleep(0.6)
            os.kill(victim, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        done, failed = for_each(tasks, slowly, pool)
        killer.join()
    assert failed == {}
    assert sorted(done) == list(range(16))
    assert all(
        summary.lines == here[0].lines and summary.leaks == here[0].leaks
        for summary in done.values()
    )


def test_nobody_there() -> None:
    pytest.importorskip("distributed")
    with (
        pytest.raises(UsageError, match="no Dask scheduler answers"),
        workers("dask://127.0.0.1:9"),
    ):
        pass


class _OtherFuture:
    """A future of another library: it has a result and nothing else."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call

    def result(self) -> Any:
        return self._call()


class _OtherExecutor:
    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> _OtherFuture:
        return _OtherFuture(lambda: function(*arguments))


@pytest.mark.parametrize("executor", [_OtherExecutor(), ThreadPoolExecutor(2)])
def test_any_executor_runs_the_map(tmp_path: Path, executor: Any) -> None:
    with workers(executor) as chosen:
        done, failed = for_each({rank: (str(tmp_path), rank) for rank in range(4)}, fails, chosen)
    assert done == {0: 0, 3: 3}
    assert failed == {1: "no such thing", 2: "RuntimeError: two"}


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="asks /proc")
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    program = (
        "import os, sys, time\n"
        "from vramlens.fleet.workers import workers\n"
        "if __name__ == '__main__':\n"
        "    with workers('1') as none, workers('2') as pool:\n"
        "        print(pool.submit(os.getpid).result(), flush=True)\n"
        "        time.sleep(60)\n"
    )
    script = tmp_path / "parent.py"
    script.write_text(program)
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        worker = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 60
    while os.path.exists(f"/proc/{worker}/exe") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{worker}/exe")
