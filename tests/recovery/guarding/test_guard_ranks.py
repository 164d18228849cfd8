"""Two ranks over gloo: one runs out of memory, all split alike, and none waits for ever."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from vramlens.recovery import guard, inject_oom
from vramlens.recovery.guarding.rank_agreement import PeerFailed, Sharded
from vramlens.recovery.training.rollback import BuffersLost

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork") or not torch.distributed.is_available(), reason="needs fork, gloo"
)
BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "guard_ranks.py"


def test_failures_on_one_rank_and_on_both_end_in_the_undisturbed_parameters() -> None:
    spec = spec_from_file_location("guard_ranks", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    benchmark = module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    found = benchmark.measured(24, 2)
    assert found["exit_codes"] == [0, 0]
    assert found["hangs"] == 0
    assert found["failures"] >= 24
    assert found["ranks_differ_by"] == 0
    assert found["undisturbed_differs_by"] < 1e-10


def in_two_ranks(function: Callable[[int], Any]) -> list[Any]:
    """What each rank answers."""
    context = torch.multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def work(rank: int, store: str) -> None:
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=2,
            timeout=timedelta(seconds=60),
        )
        answers.put((rank, function(rank)))
        os._exit(0)

    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        processes = [
            context.Process(target=work, args=(rank, store), daemon=True) for rank in range(2)
        ]
        for process in processes:
            process.start()
        rows = dict(answers.get() for _ in processes)
        for process in processes:
            process.join(30)
            process.kill()
    return [rows[rank] for rank in range(2)]


def loss_fn(model: Any, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def outcome_of_step(watch: Any, loss: Callable[..., torch.Tensor]) -> str:
    """How one guarded step ends on this rank: the error, or "none"."""
    try:
        watch.step(torch.ones(4, 3), loss)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def test_another_error_on_one_rank_ends_the_other_with_words() -> None:
    def train(rank: int) -> str:
        watch = guard(DistributedDataParallel(nn.Linear(3, 3)), timeout_s=20)

        def fails(model: Any, batch: torch.Tensor) -> torch.Tensor:
            if rank == 1:
                raise ValueError("the program's own")
            return loss_fn(model, batch)

        return outcome_of_step(watch, fails)

    first, second = in_two_ranks(train)
    assert first.startswith(
        "PeerFailed: guard: another rank failed with a different error (not out of memory)"
    )
    assert second == "ValueError: the program's own"


def test_a_rank_that_cannot_go_back_ends_the_other_with_words() -> None:
    def train(rank: int) -> str:
        watch = guard(DistributedDataParallel(nn.Linear(3, 3)), timeout_s=20, verify=False)
        if rank == 1:
            watch._start.restore = _cannot_go_back  # type: ignore[method-assign]
        with inject_oom("forward", at=1, rank=1):
            return outcome_of_step(watch, loss_fn)

    first, second = in_two_ranks(train)
    assert first.startswith(
        "PeerFailed: guard: another rank failed with a different error (not out of memory)"
    )
    assert second == "BuffersLost: guard: a buffer is gone"


def _cannot_go_back() -> None:
    raise BuffersLost("guard: a buffer is gone")


def test_a_rank_that_is_gone_is_waited_for_no_longer_than_told() -> None:
    def train(rank: int) -> str:
        watch = guard(DistributedDataParallel(nn.Linear(3, 3)), timeout_s=2)
        if rank == 1:
            import time

            time.sleep(6)  # busy elsewhere
            return "gone"
        try:
            watch.step(torch.ones(4, 3), loss_fn)
        except PeerFailed as error:
            return str(error)
        return "none"

    assert "did not agree on how the step went within 2 s" in in_two_ranks(train)[0]


def test_parameters_that_only_one_rank_uses_get_the_average() -> None:
    def train(rank: int) -> list[float]:
        torch.manual_seed(0)
        net = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3), "c": nn.Linear(3, 3)})
        watch = guard(DistributedDataParallel(net), timeout_s=20)
        watch.step(torch.ones(4, 3), lambda m, b: m["a" if rank else "b"](b).square().mean())
        assert net["c"].weight.grad is None
        return [float(net[name].weight.grad.norm()) for name in "ab"]

    first, second = in_two_ranks(train)
    assert first == second
    assert min(first) > 0


def test_a_model_spread_over_ranks_is_split_beforehand_and_never_recovered() -> None:
    def train(rank: int) -> tuple[list[int], str, str]:
        model = nn.Linear(3, 3)
        model.weight.device_mesh = (
            None  # as the parameters of FSDP2 and of tensor parallel have one
        )
        path = os.path.join(tempfile.mkdtemp(), "split.json")
        os.environ["VRAMLENS_SPLIT_FILE"] = path
        watch = guard(model, verify=False, timeout_s=20, micro_batch=4 if rank else 8)
        sizes: list[int] = []

        def seen(m: Any, b: torch.Tensor) -> torch.Tensor:
            sizes.append(len(b))
            return loss_fn(m, b)

        watch.step(torch.ones(8, 3), seen)
        error = ""

        def fails(m: Any, b: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")

        try:
            watch.step(torch.ones(8, 3), fails)
        except torch.OutOfMemoryError as raised:
            error = str(raised)
        assert isinstance(watch._ranks, Sharded)
        return sizes, error, Path(path).read_text()

    for sizes, error, left in in_two_ranks(train):
        assert sizes == [4, 4]  # the smaller parts of the two ranks
        assert error.startswith("CUDA out of memory")
        assert '"out_of_memory": true' in left
        assert '"micro_batch": 2' in left
