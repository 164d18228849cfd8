"""plan, retry, the adaptive loader and restarts."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from recovery.training import furthest, mean_loss, net
from vramlens.errors import UsageError
from vramlens.recovery import AdaptiveBatchLoader, find_batch_size, inject_oom, plan, retry
from vramlens.recovery.batch_size.batch_loader import TokenBudgetSampler
from vramlens.recovery.batch_size.peak_fit import LengthCost
from vramlens.recovery.guarding.restarting import run_with_restarts, without_option
from vramlens.recovery.meters import CountingMeter
from vramlens.recovery.planning.recompute_plan import Plan
from vramlens.recovery.splitting.batch_parts import CannotSplit

SIZES = {"width": 48, "vocabulary": 64, "blocks": 5}


def token_batch(size: int, length: int = 24) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    ids = torch.randint(0, 64, (size, length), generator=generator)
    return {"ids": ids, "labels": ids}


def test_a_plan_is_verified_and_as_small_as_the_budget_needs() -> None:
    with CountingMeter() as meter:
        model = net(torch.float32, **SIZES)
        optimizer = torch.optim.AdamW(model.parameters())
        before = copy.deepcopy(model.state_dict())
        free = plan(model, token_batch, mean_loss, optimizer, budget=10**12, batch=16, meter=meter)
        assert not any(choice.chosen for choice in free.choices)
        assert str(free).endswith("nothing to do: it already fits")
        assert free.before_bytes is not None
        counts = []
        for share in (0.9, 0.6):
            found = plan(
                model,
                token_batch,
                mean_loss,
                optimizer,
                budget=int(share * free.before_bytes),
                batch=16,
                meter=meter,
            )
            assert found.fits
            assert found.after_bytes <= share * free.before_bytes
            counts.append(sum(choice.chosen for choice in found.choices))
        assert counts == sorted(counts)
        assert 0 < counts[0] < 5
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        assert optimizer.state_dict()["state"] == {}
        impossible = plan(
            model, token_batch, mean_loss, optimizer, budget="100KiB", batch=16, meter=meter
        )
        assert not impossible.fits
        assert "Nothing that was tried stays within 100.00 KiB" in str(impossible)
    plain, planned = net(torch.float64, **SIZES), net(torch.float64, **SIZES)
    found.apply(planned)
    for one in (plain, planned):
        mean_loss(one, token_batch(4)).backward()
    ours, theirs = ({n: p.grad for n, p in one.named_parameters()} for one in (planned, plain))
    assert furthest(ours, theirs) < 1e-10
    with pytest.raises(UsageError, match="the model has no block blocks"):
        found.apply(nn.Linear(2, 2))


def test_a_plan_needs_a_counter_and_blocks() -> None:
    with pytest.raises(UsageError, match="on a GPU"):
        plan(net(**SIZES), token_batch, mean_loss, budget="1GiB", batch=2)
    with CountingMeter() as meter, pytest.raises(UsageError, match="no blocks"):
        plan(nn.Linear(2, 2), token_batch, mean_loss, budget="1GiB", batch=2, meter=meter)


def test_retry_gives_what_the_function_gives() -> None:
    model = nn.Linear(4, 3).double()
    calls: list[int] = []

    @retry
    def infer(batch: Any, scale: float = 1.0) -> Any:
        calls.append(len(batch["x"]))
        out = model(batch["x"]) * scale
        return {"out": out, "parts": (out.sum(1), [str(i) for i in range(len(out))])}

    batch = {"x": torch.randn(10, 4, dtype=torch.float64)}
    truth = model(batch["x"]) * 2
    with inject_oom("forward", at=(1, 2)):
        result = infer(batch, scale=2.0)
    assert torch.allclose(result["out"], truth)
    assert torch.allclose(result["parts"][0], truth.sum(1))
    assert len(result["parts"][1]) == 10
    assert calls == [10, 5, 3, 3, 2, 2]
    assert infer.chunk == 3  # type: ignore[attr-defined]
    with (
        inject_oom("forward", every=1),
        pytest.raises(torch.OutOfMemoryError, match="even a single sample does not fit"),
    ):
        infer(batch)


def test_retry_refuses_what_cannot_be_joined() -> None:
    model = nn.Linear(4, 3)
    with inject_oom("forward"), pytest.raises(CannotSplit, match="one row per sample"):
        retry(lambda x: model(x).mean())(torch.randn(8, 4))
    with pytest.raises(ValueError, match="own"):
        retry(lambda x: (_ for _ in ()).throw(ValueError("own")))(torch.randn(8, 4))


@given(
    st.lists(st.integers(1, 100), min_size=1, max_size=60), st.integers(100, 2000), st.booleans()
)
@settings(max_examples=100, deadline=None)
def test_no_ragged_batch_passes_the_budget_and_none_is_lost(
    lengths: list[int], budget: int, shuffle: bool
) -> None:
    cost = LengthCost(3.0, 0.05)
    if all(cost(length) > budget for length in lengths):
        return
    sampler = TokenBudgetSampler(lengths, cost, budget, shuffle=shuffle)
    size = len(sampler)
    batches = list(sampler)
    assert len(batches) == size
    assert sorted([*(index for batch in batches for index in batch), *sampler.too_long]) == list(
        range(len(lengths))
    )
    for batch in batches:
        assert len(batch) * cost(max(lengths[index] for index in batch)) <= budget


def test_an_adaptive_loader_stays_below_its_budget() -> None:
    lengths = [4 + (index * 7) % 45 for index in range(120)]
    data = [torch.arange(length) % 64 for length in lengths]

    def make(size: int, length: int) -> dict[str, torch.Tensor]:
        return token_batch(size, length)

    def collate(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return {"ids": ids, "labels": ids}

    budget = 6_000_000
    with CountingMeter(budget) as meter:
        model = net(torch.float32, **SIZES)
        optimizer = torch.optim.AdamW(model.parameters())
        loader = AdaptiveBatchLoader(
            data, budget, model=model, make_batch=make, loss_fn=mean_loss, optimizer=optimizer, length_fn=len,
            meter=meter, collate_fn=collate,
        )  # fmt: skip
        sizes, fullest = [], 0
        for batch in loader:
            meter.restart()
            mean_loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            sizes.append(len(batch["ids"]))
            fullest = max(fullest, meter.peak_bytes())
    assert meter.failures == 0
    assert sum(sizes) == len(data)
    assert len(set(sizes)) > 2
    assert fullest > 0.7 * budget  # and it is used


def test_a_loader_of_equal_samples() -> None:
    with CountingMeter(4_000_000) as meter:
        model = net(torch.float32, **SIZES)
        found = find_batch_size(model, token_batch, mean_loss, meter=meter)
        loader = AdaptiveBatchLoader(list(range(1000)), 4_000_000, found=found)
        smaller = AdaptiveBatchLoader(list(range(1000)), 2_500_000, found=found)
    assert loader.loader.batch_size == found.size
    assert smaller.loader.batch_size is not None
    assert 0 < smaller.loader.batch_size < found.size
    assert sorted(int(x) for batch in loader for x in batch) == list(range(1000))
    with pytest.raises(UsageError, match="pass found="):
        AdaptiveBatchLoader([1], "1GiB")


PROGRAM = """
import json, os, sys
size = os.environ.get("VRAMLENS_MICRO_BATCH")
with open(sys.argv[1], "a") as file: file.write(f"{size} ")
if size is None or int(size) > 2:
    learned = 8 if size is None else int(size) // 2
    if sys.argv[2] == "learns":
        json.dump({"out_of_memory": True, "micro_batch": learned}, open(os.environ["VRAMLENS_SPLIT_FILE"], "w"))
    elif sys.argv[2] == "dies":
        json.dump({"out_of_memory": True}, open(os.environ["VRAMLENS_SPLIT_FILE"], "w"))
    sys.exit(3)
"""


@pytest.mark.parametrize(
    ("kind", "times", "code", "sizes"),
    [
        ("learns", 5, 0, "None 8 4 2 "),
        ("learns", 1, 3, "None 8 "),
        ("dies", 5, 3, "None "),
        ("other", 5, 3, "None "),
    ],
)
def test_a_program_is_restarted_with_what_its_guard_has_learned(
    tmp_path: Path, kind: str, times: int, code: int, sizes: str
) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    assert (
        run_with_restarts([sys.executable, str(script), str(tmp_path / "log"), kind], times) == code
    )
    assert (tmp_path / "log").read_text() == sizes


def test_the_restart_option_is_taken_out() -> None:
    assert without_option(["run", "--restart-on-oom", "3", "-o", "x", "t.py", "--restart-on-oom", "9"], "--restart-on-oom") == [
        "run", "-o", "x", "t.py", "--restart-on-oom", "9",
    ]  # fmt: skip
    assert without_option(["run", "--restart-on-oom=3", "t.py"], "--restart-on-oom") == [
        "run",
        "t.py",
    ]


def test_a_guard_leaves_its_split_for_the_next_run(tmp_path: Path) -> None:
    """End to end, in a process of its own: a guard that learns, dies on one sample, and leaves
    word.
    """
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, vramlens.recovery as r\n"
        "m = torch.nn.Linear(2, 2)\n"
        "g = r.guard(m, verify=False)\n"
        "with r.inject_oom('forward', every=1):\n"
        "    g.step(torch.ones(8, 2), lambda m, b: m(b).mean())\n"
    )
    path = tmp_path / "split.json"
    import os

    environment = os.environ | {
        "VRAMLENS_SPLIT_FILE": str(path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "even a single sample does not fit" in done.stderr
    assert json.loads(path.read_text()) == {"micro_batch": 1, "out_of_memory": True}


def test_measuring_blocks_leaves_no_byte() -> None:
    from vramlens.recovery.training.recompute import offloaded, saved_bytes, units_of

    with CountingMeter() as meter:
        model, batch = net(torch.float32, **SIZES), token_batch(4)
        before = meter.allocated_bytes()
        with saved_bytes(model, units_of(model)) as found:
            mean_loss(model, batch)  # no backward: what the hooks keep must go with the graph
        with offloaded(list(model.parameters())):
            mean_loss(model, batch)
        assert all(size > 10_000 for size in found.values())
        assert meter.allocated_bytes() == before


def test_a_plan_that_ran_out_of_memory_does_not_say_nothing_was_needed() -> None:
    text = str(Plan((), True, 2**30, None, 0, None, 0.0, False))
    assert text.startswith(
        "Nothing that was tried stays within 1.00 GiB: with 0 blocks recomputed, the rest offloaded"
    )
    assert "it ran out of memory." in text
