"""The range of a prediction: other histories of the allocator, and all programs that were measured."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, median
from types import SimpleNamespace
from typing import Any

import pytest

from vramlens.prediction.requests import request_log
from vramlens.prediction.requests.compiled_requests import as_compiled
from vramlens.prediction.requests.other_draws import with_other_draws
from vramlens.prediction.requests.request_log import ALLOCATE, EMPTY_CACHE, FREE, RequestLog
from vramlens.prediction.requests.served_requests import serve, with_shifted_frees
from vramlens.prediction.requests.skipped_step import with_skipped_step

RESCORED = Path(__file__).parents[2] / "benchmarks" / "prediction" / "rescored.json"
MIB = 1 << 20


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> RequestLog:
    """Empty; its requests have no stacks and no nodes of autograd, so PyTorch is not needed."""
    autograd = SimpleNamespace(_get_sequence_nr=lambda: 0)
    without_nodes = SimpleNamespace(_autograd=autograd, _current_autograd_node=lambda: None)
    monkeypatch.setattr(request_log, "torch", SimpleNamespace(_C=without_nodes))
    log = RequestLog()
    log.stack_table.number = lambda: 0  # type: ignore[method-assign]
    return log


def fill(log: RequestLog, count: int) -> None:
    """Many short-lived requests, with the cache emptied once."""
    live: list[int] = []
    for number in range(count):
        live.append(log.allocate((1 + number % 7) * MIB))
        if number % 3 == 2:
            log.free(live.pop(0))
        if number == count // 2:
            log.empty_cache()


def test_frees_come_later_but_never_first_and_never_after_the_cache_is_emptied(
    log: RequestLog,
) -> None:
    fill(log, 300)
    events = list(zip(log.kinds, log.rows, strict=True))
    emptied = log.kinds.index(EMPTY_CACHE)
    histories = list(with_shifted_frees(log))
    assert len(histories) == 8
    for history in histories:
        shifted = list(zip(history.kinds, history.rows, strict=True))
        assert sorted(shifted) == sorted(events)
        assert shifted[emptied] == (EMPTY_CACHE, -1)
        for row in range(300):
            if (FREE, row) in shifted:
                assert shifted.index((ALLOCATE, row)) < shifted.index((FREE, row))
    assert any(list(history.kinds) != log.kinds for history in histories)


def test_what_another_stream_used_may_come_free_only_when_the_host_waits(log: RequestLog) -> None:
    first = log.allocate(64 * MIB)
    log.used_aside.add(first)
    log.free(first)
    second = log.allocate(64 * MIB)
    log.note_wait()
    log.free(second)
    third = log.allocate(128 * MIB)
    log.free(third)
    served = serve(log, "", "2.11", card_bytes=1 << 40, limits=(200 * MIB,))
    assert served.peaks["reserved_bytes"] == 192 * MIB
    assert served.high_bytes == 256 * MIB  # the second cannot have the first one's block
    assert served.within[200 * MIB].lives  # a full card waits for the other stream


def test_what_one_stream_used_comes_free_at_once(log: RequestLog) -> None:
    first = log.allocate(64 * MIB)
    log.free(first)
    log.free(log.allocate(64 * MIB))
    served = serve(log, "", "2.11", card_bytes=1 << 40)
    assert served.high_bytes == 64 * MIB


def draw(log: RequestLog, *sizes: int) -> None:
    """One drawn request after the other, freed before the next, each beside one that is not."""
    for size in sizes:
        log.note_draw()
        for row in (log.allocate(size), log.allocate(16 * MIB)):
            log.free(row)


def test_what_is_drawn_may_come_in_another_order(log: RequestLog) -> None:
    draw(log, 40 * MIB, 38 * MIB, 42 * MIB)
    drawn = [other.sizes[::2] for other in with_other_draws(log)]
    assert drawn == [
        [42 * MIB, 40 * MIB, 38 * MIB],
        [38 * MIB, 42 * MIB, 40 * MIB],
    ]


def test_a_draw_that_is_followed_by_more_keeps_that(log: RequestLog) -> None:
    log.allocate(100 * MIB)  # before the first
    draw(log, 40 * MIB, 42 * MIB)
    log.allocate(7 * MIB)
    most_first = next(with_other_draws(log)).sizes
    assert most_first == [100 * MIB, 42 * MIB, 16 * MIB, 40 * MIB, 16 * MIB, 7 * MIB]


def test_nothing_is_exchanged_where_all_draws_are_alike(log: RequestLog) -> None:
    draw(log, 40 * MIB, 40 * MIB)
    assert list(with_other_draws(log)) == []


def test_the_range_includes_blocks_that_a_larger_draw_makes_useless(log: RequestLog) -> None:
    """As in ``u13_gatv2_nodes``: 42 MiB and a bit reserve 44 MiB, in which 42 MiB fit, too."""
    draw(log, 42 * MIB + 1024, 42 * MIB, 42 * MIB)
    served = serve(log, "", "2.11", card_bytes=80 << 30)
    assert served.peaks["reserved_bytes"] == 60 * MIB
    assert served.high_bytes >= (44 + 42 + 16) * MIB


def train(log: RequestLog, steps: int, *, scaler: str) -> None:
    """Steps of an activation, a gradient and a temporary of the optimizer; the first makes a state."""
    frame = {"filename": scaler, "line": 453, "name": "step"}
    log.stack_table.stacks = [[], [frame]]
    running = [0]
    log.stack_table.number = lambda: running[0]  # type: ignore[method-assign]
    for step in range(steps):
        running[0] = 0
        activation, gradient = log.allocate(40 * MIB), log.allocate(10 * MIB)
        log.free(activation)
        running[0] = 1
        if step == 0:
            log.allocate(20 * MIB)
        log.scratch(2 * MIB)
        log.free(gradient)


def test_a_scaler_may_skip_the_first_step(log: RequestLog) -> None:
    train(log, 3, scaler="site-packages/torch/amp/grad_scaler.py")
    (skipped,) = with_skipped_step(log)
    requested = [skipped.sizes[row] // MIB for kind, row in skipped.events if kind == ALLOCATE]
    assert requested == [40, 10, 2, 40, 10, 20, 2, 40, 10, 2]
    assert [row for kind, row in skipped.events if kind == ALLOCATE] == list(range(10))
    freed = sorted(skipped.sizes[row] for kind, row in skipped.events if kind == FREE)
    assert freed == sorted(log.sizes[row] for kind, row in log.events if kind == FREE)


@pytest.mark.parametrize(
    ("steps", "scaler"), [(1, "torch/amp/grad_scaler.py"), (3, "torch/optim/adamw.py")]
)
def test_no_step_is_skipped(log: RequestLog, steps: int, scaler: str) -> None:
    train(log, steps, scaler=scaler)
    assert list(with_skipped_step(log)) == []


def test_what_a_compiled_program_makes_again_lives_as_long_as_it_is_read(
    log: RequestLog,
) -> None:
    product, other = log.allocate(8 * MIB), log.allocate(4 * MIB)
    added, activated = log.allocate(8 * MIB), log.allocate(8 * MIB)
    log.fused_from = {added: (product, other), activated: (added,)}
    log.free(product)
    log.free(added)
    log.free(activated)
    log.free(other)
    compiled = as_compiled(log)
    assert [compiled.sizes[row] for row in (added, activated)] == [1, 1]
    assert [row for kind, row in compiled.events if kind == FREE] == [
        added,
        activated,
        product,
        other,
    ]
    log.fused_from.clear()
    assert as_compiled(log) is log


def test_a_fused_kernel_writes_over_what_nobody_reads_any_more(log: RequestLog) -> None:
    logits, shares = log.allocate(8 * MIB), log.allocate(16 * MIB)
    log.fused_from = {shares: (logits,)}
    log.free(logits)
    gradient = log.allocate(8 * MIB)
    log.written_by_fusion = {gradient: (shares,)}
    log.free(shares)
    product = log.allocate(4 * MIB)
    log.free(gradient)
    compiled = as_compiled(log)
    assert [compiled.sizes[row] for row in (logits, shares, gradient)] == [8 * MIB, 1, 1]
    freed = [row for kind, row in compiled.events if kind == FREE]
    assert freed == [shares, gradient, logits]
    assert compiled.events.index((ALLOCATE, product)) < compiled.events.index((FREE, logits))


@pytest.fixture(scope="module")
def rows() -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(RESCORED.read_text())
    return answer


def width(row: dict[str, Any]) -> float:
    """How wide a range is, as a share of what was reserved."""
    share: float = (row["high_bytes"] - row["low_bytes"]) / row["measured_reserved_bytes"]
    return share


def test_every_measured_program_reserved_what_its_range_says(rows: dict[str, Any]) -> None:
    assert len(rows) == 90
    outside = {
        name
        for name, row in rows.items()
        if not row["low_bytes"] <= row["measured_reserved_bytes"] <= row["high_bytes"]
    }
    assert outside == set()


def test_ranges_are_not_simply_wide(rows: dict[str, Any]) -> None:
    widths = [width(row) for row in rows.values()]
    assert mean(widths) < 0.19
    assert median(widths) < 0.13


def test_a_stack_that_was_seen_is_numbered_without_its_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stacks = request_log.RequestStacks()
    asked: list[Any] = []
    by_lines = stacks._number_of_lines
    monkeypatch.setattr(stacks, "_number_of_lines", lambda at: asked.append(at) or by_lines(at))

    def request() -> int:
        return stacks.number()

    numbers = [request() for _ in range(3)]
    other = request()
    assert len(set(numbers)) == 1
    assert other != numbers[0]
    assert len(asked) == 2
    lines = [stacks.stacks[number][0]["line"] for number in (numbers[0], other)]
    assert lines[1] == lines[0] + 1
