"""strategies: each in its own process, the same numbers where promised, and an honest table."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from recovery.training import mean_loss, net
from vramlens.errors import UsageError
from vramlens.recovery import strategies
from vramlens.recovery.comparing import strategy_run
from vramlens.recovery.comparing.strategy_figure import figure_svg
from vramlens.recovery.comparing.strategy_kinds import Program
from vramlens.recovery.comparing.strategy_row import StrategyRow
from vramlens.recovery.comparing.strategy_table import StrategyTable
from vramlens.recovery.losses.chunked_loss import chunked_cross_entropy
from vramlens.recovery.meters import CountingMeter


def model_fn() -> nn.Module:
    return net(torch.float32, width=32, vocabulary=128, blocks=4)


def make_batch(size: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 128, (size, 32))
    return {"ids": ids, "labels": ids}


def optimizer_fn(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


@pytest.fixture(scope="module")
def table() -> StrategyTable:
    names = [
        "default", "split", "checkpoint", "checkpoint_half", "bf16", "foreach_off", "fused", "in_backward", "eight_bit",
        "chunked_loss", "channels_last", "checkpoint+split",
    ]  # fmt: skip
    return strategies(
        model_fn,
        make_batch,
        mean_loss,
        optimizer_fn,
        batch=16,
        names=names,
        device="cpu",
        repeats=1,
        steps=2,
        budget="1GiB",
    )


def test_a_compiled_model_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's compiled modules have a length that raises, and so no truth value."""
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compiled(model, backend="eager"))
    with CountingMeter() as meter:
        found = strategy_run._run(
            "compile",
            torch.device("cpu"),
            meter,
            Program(model_fn, make_batch, mean_loss, optimizer_fn, batch=4),
            2,
        )
    assert found.get("why") is None


def test_each_is_measured_or_says_why_not(table: StrategyTable) -> None:
    assert {row.name: row.why for row in table.rows if row.outcome != "done"} == {
        "eight_bit": "bitsandbytes is not installed",
        "channels_last": "no 2-d convolution",
    }


def test_what_promises_the_same_numbers_has_them(table: StrategyTable) -> None:
    for row in table.rows:
        if row.outcome == "done" and row.same_numbers:
            assert row.loss_drift is not None
            assert row.loss_drift < 1e-4, row.name
            assert row.gradient_drift is None or row.gradient_drift < 1e-4, row.name
    assert table["in_backward"].gradient_drift is None
    assert table["bf16"].gradient_drift is not None
    assert table["bf16"].gradient_drift > 1e-4


def test_what_saves_memory_saves_it(table: StrategyTable) -> None:
    peaks = {row.name: row.peak_allocated_bytes or 0 for row in table.rows}
    assert peaks["checkpoint"] < peaks["checkpoint_half"] < peaks["default"]
    assert peaks["split"] < peaks["default"]
    assert peaks["checkpoint+split"] < peaks["checkpoint"]
    assert peaks["chunked_loss"] < peaks["default"]


def test_the_table_on_the_cpu_recommends_nothing_by_its_times(table: StrategyTable) -> None:
    text = str(table)
    assert text.splitlines()[0].startswith("Tried on the CPU: the default fits within 1.00 GiB: ")
    assert "these numbers say little about a GPU" in " ".join(text.split())
    assert "eight_bit: not here: bitsandbytes is not installed" in text
    assert (
        text.splitlines()[-1]
        == "Next: run this on the GPU where the model trains before you choose"
    )
    assert max(map(len, text.splitlines())) <= 80
    assert table.best is table["default"]
    assert (table.findings[0].verdict, table.findings[0].fix) == (
        "possible",
        text.splitlines()[-1][6:],
    )


def measured(name: str, step_ms: float, peak: int = 2**30, spread_ms: float = 0.0) -> StrategyRow:
    return StrategyRow(
        name, "done", "", peak, peak, step_ms, spread_ms, 0.0, 0.0, 1, True, "speed", f"edit {name}"
    )


@pytest.mark.parametrize(
    ("default", "fused", "budget", "best"),
    [
        (
            measured("default", 1.8, spread_ms=0.3),
            measured("fused", 1.6),
            None,
            "default",
        ),  # within the noise
        (measured("default", 1.8), measured("fused", 1.6, spread_ms=0.3), None, "default"),
        (measured("default", 1.8), measured("fused", 1.79), None, "default"),
        (measured("default", 180.0, spread_ms=3.0), measured("fused", 160.0), None, "fused"),
        (
            measured("default", 1.6, peak=3 * 2**30),
            measured("fused", 1.8),
            2**31,
            "fused",
        ),  # the only one that fits
    ],
)
def test_on_a_gpu_only_what_is_clearly_faster_or_fits_is_recommended(
    default: StrategyRow, fused: StrategyRow, budget: int | None, best: str
) -> None:
    table = StrategyTable((default, fused), budget, 4, "cuda", 2, 5)
    assert table.best is not None
    assert table.best.name == best
    text = str(table)
    assert "on the CPU" not in text
    assert text.splitlines()[-1].startswith(
        "Next: nothing to change" if best == "default" else "Next: edit fused"
    )
    on_cpu = StrategyTable((default, fused), budget, 4, "cpu", 2, 5)
    assert on_cpu.best is not None
    assert on_cpu.best.name == ("fused" if budget else "default")


def test_a_prediction_names_what_saves_most_and_what_may_not_fit() -> None:
    sizes = {"default": 400, "bf16": 250, "checkpoint": 300}
    rows = tuple(
        replace(
            measured(name, 0, peak=size << 20),
            step_ms=None,
            low_reserved_bytes=(size - 20) << 20,
            high_reserved_bytes=(size + 20) << 20,
        )
        for name, size in sizes.items()
    )
    text = " ".join(str(StrategyTable(rows, None, None, "predicted", 1, 3)).split())
    assert text.startswith(
        "Predicted without a GPU: bf16 saves most: 250.00 MiB reserved at the peak instead of"
        " 400.00 MiB (150.00 MiB less). Speeds were not compared."
    )
    assert "fits" not in text
    assert "bf16: edit bf16 checkpoint: edit checkpoint" in text
    limited = StrategyTable(rows, 310 << 20, None, "predicted", 1, 3)
    assert [limited.fits(row) for row in rows] == [False, True, False]
    assert [limited.is_over(row) for row in rows] == [True, False, False]
    assert "! default" in str(limited)
    assert "? checkpoint" in str(limited)
    assert "! is over 310.00 MiB, ? may be" in " ".join(str(limited).split())


def test_a_long_row_fits_80_columns() -> None:
    names = ["default", "bf16+fused+chunked_loss", "bf16+checkpoint"]
    rows = [measured(name, 12345.6, peak=139 * 2**30) for name in names]
    failed = StrategyRow(
        "compile",
        "failed",
        "word " * 60,
        None,
        None,
        None,
        None,
        None,
        None,
        1,
        True,
        "speed",
        "edit",
    )
    for device in ("cpu", "cuda"):
        text = str(StrategyTable((*rows, failed), 2**30, 100_000, device, 2, 5))
        assert max(map(len, text.splitlines())) <= 80


def test_one_error_of_every_strategy_is_said_once() -> None:
    why = "FakeTensorDeviceMismatchError: found at least two devices, cpu and cuda:0"
    rows = [
        StrategyRow(name, "failed", why, *[None] * 6, 1, True, "speed", "edit")
        for name in ("default", "bf16", "fused")
    ]
    text = str(StrategyTable(tuple(rows), None, 64, "predicted", 1, 3))
    assert text.count("FakeTensorDeviceMismatchError") == 1
    assert text.startswith("Nothing to compare: every strategy failed, the default as well.")
    assert "all of them: failed: " in text
    assert text.splitlines()[-1] == "Next: make the default work, then compare again"


def test_the_figure_is_a_picture(table: StrategyTable, tmp_path: Path) -> None:
    table.figure(str(tmp_path / "figure.svg"))
    text = (tmp_path / "figure.svg").read_text()
    ElementTree.fromstring(text)
    assert "checkpoint_half" in text
    ElementTree.fromstring(figure_svg([], None))


def test_a_row_can_be_applied(table: StrategyTable) -> None:
    model, plain = model_fn(), model_fn()
    batch = make_batch(4)
    assert table["checkpoint"].apply(model) is model
    mean_loss(model, batch).backward()
    mean_loss(plain, batch).backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad)
    with pytest.raises(UsageError, match="does not change the model: write"):
        table["bf16"].apply(model)


def test_unknown_names() -> None:
    with pytest.raises(UsageError, match="'magic' is not a strategy"):
        strategies(
            model_fn,
            make_batch,
            mean_loss,
            optimizer_fn,
            batch=2,
            names=["split+magic"],
            device="cpu",
        )


def test_a_process_that_dies_is_a_row() -> None:
    import os

    def dies(size: int) -> Any:
        os._exit(9)

    found = strategies(
        model_fn,
        dies,
        mean_loss,
        optimizer_fn,
        batch=2,
        names=["default"],
        device="cpu",
        repeats=1,
        steps=1,
    )
    assert found["default"].why == "the process exited with code 9"
    assert found.best is None
    assert str(found).startswith("Nothing to compare: every strategy failed")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_cross_entropy_in_chunks_is_cross_entropy(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = torch.randn(2500, 30, dtype=dtype, requires_grad=True)
    target = torch.randint(0, 30, (2500,))
    target[::7] = -100
    ours = chunked_cross_entropy(logits, target)
    (3 * ours).backward()
    gradient, logits.grad = logits.grad, None
    theirs = functional.cross_entropy(logits, target)
    (3 * theirs).backward()
    assert torch.allclose(ours, theirs)
    assert torch.allclose(gradient, logits.grad, atol=1e-8)


def test_a_sum_stays_a_sum_in_parts() -> None:
    def summed(model: Any, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(
            model(batch["ids"]).flatten(0, 1), batch["labels"].flatten(), reduction="sum"
        )

    found = strategies(
        model_fn,
        make_batch,
        summed,
        optimizer_fn,
        batch=8,
        names=["split"],
        device="cpu",
        repeats=1,
        steps=1,
    )["split"]
    assert found.gradient_drift is not None
    assert found.gradient_drift < 1e-5
    assert found.loss_drift is not None
    assert found.loss_drift < 1e-4


def test_an_optimizer_that_cannot_be_made_stops_it_at_once() -> None:
    def wrong(model: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    text = (
        r"optimizer_fn\(parameters\) failed: AttributeError: .* \(it gets a list of parameters\)$"
    )
    with pytest.raises(UsageError, match=text):
        strategies(model_fn, make_batch, mean_loss, wrong, batch=2, device="cpu")
