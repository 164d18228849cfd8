"""The table of strategies that were predicted: its order, its effort, and what to do next."""

from __future__ import annotations

import pytest

from vramlens.recovery.comparing.strategy_row import StrategyRow
from vramlens.recovery.comparing.strategy_table import PREDICTED, StrategyTable
from vramlens.units import GIB, MIB


def predicted(
    name: str, allocated_mib: int, reserved_mib: int, outcome: str = "done"
) -> StrategyRow:
    return StrategyRow(
        name=name,
        outcome=outcome,
        why="" if outcome == "done" else "autocast in bfloat16 is already in use",
        peak_allocated_bytes=allocated_mib * MIB,
        peak_reserved_bytes=reserved_mib * MIB,
        step_ms=None,
        step_spread_ms=None,
        loss_drift=None,
        gradient_drift=None,
        difficulty=1,
        same_numbers=True,
        best_for="",
        edit=f"edit {name}",
    )


ROWS = (
    predicted("default", 9000, 12000),
    predicted("empty_cache", 9000, 10000),
    predicted("offload", 6000, 8800),
    predicted("checkpoint", 7000, 9200),
    predicted("checkpoint_half", 8000, 9900),
    predicted("fused", 9000, 12000),
    predicted("bf16", 0, 0, "not here"),
)


def table_of(
    rows: tuple[StrategyRow, ...] = ROWS, budget: int | None = 8 * GIB, script: str = "train.py"
) -> StrategyTable:
    return StrategyTable(rows, budget, None, PREDICTED, repeats=1, steps=3, script=script)


def names_in_order(table: StrategyTable) -> list[str]:
    return [
        line.split()[1]
        for line in str(table).splitlines()
        if line.split()[:1] == ["!"] and line.split()[2:3] != []
    ]


def test_rows_come_in_the_order_of_what_decides() -> None:
    names = names_in_order(table_of())
    assert names[:3] == ["offload", "checkpoint", "checkpoint_half"]
    assert names[3] == "empty_cache"
    assert set(names[4:]) == {"default", "fused"}


def test_the_default_takes_no_effort() -> None:
    (line,) = (line for line in str(table_of()).splitlines() if " default " in line[:20])
    assert not line.rstrip().endswith("+")


def test_a_row_that_reads_as_the_default_says_why() -> None:
    text = " ".join(str(table_of()).split())
    assert (
        "fused: needs the same as the default: already in use, or without effect at the peak"
        in text
    )
    assert "bf16: not here: autocast in bfloat16 is already in use" in text


def test_where_nothing_fits_the_next_step_is_what_could() -> None:
    lines = str(table_of()).splitlines()
    assert lines[0] == "Nothing that was tried fits within 8.00 GiB."
    assert lines[-2:] == [
        "Next: a smaller batch, or those that save most, together:",
        "  vramlens strategies --budget 8.00GiB --names offload+empty_cache train.py",
    ]


@pytest.mark.parametrize(
    ("rows", "script"),
    [
        (ROWS[:1], "train.py"),
        ((*ROWS, predicted("empty_cache+offload", 8500, 8700)), "train.py"),
    ],
)
def test_nothing_more_to_combine_leaves_a_smaller_batch(
    rows: tuple[StrategyRow, ...], script: str
) -> None:
    assert str(table_of(rows, script=script)).splitlines()[-1] == (
        "Next: a smaller batch, or smaller inputs"
    )


def test_where_something_fits_it_is_to_be_run_on_the_gpu() -> None:
    assert str(table_of(budget=9 * GIB)).splitlines()[-1].startswith("Next: run this on the GPU")
