"""How much of a batch is padding, read from tables of integers that are alive."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramlens.capture.failure_facts import batch_tables as module
from vramlens.capture.failure_facts.batch_tables import batch_numbers
from vramlens.capture.failure_facts.ignored_labels import ignored_labels
from vramlens.capture.failure_facts.padded_batch import padded_batch, used_columns

torch = pytest.importorskip("torch")

Batch = dict[str, int]


@pytest.fixture(autouse=True)
def _no_tables_of_others(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Only tables of an odd number of rows are looked at: other tests may have left some."""
    tables_of = module._places_of

    def of_this_test(*arguments: Any) -> Iterator[Any]:
        return (table for table in tables_of(*arguments) if table.rows in (7, 9))

    monkeypatch.setattr(module, "_places_of", of_this_test)
    return iter(())


def told() -> Batch | None:
    return padded_batch(batch_numbers("cpu", ctypes.string_at).tables)


def tokens(columns: int, *lengths: int, left: bool = False, pad: int = 0) -> Any:
    """Seven rows of token numbers."""
    table = torch.full((7, columns), pad, dtype=torch.long)
    for row, length in enumerate((*lengths, *[lengths[0]] * (7 - len(lengths)))):
        numbers = torch.arange(100, 100 + length)
        table[row, columns - length if left else 0 :][:length] = numbers
    return table


def mask(columns: int, *lengths: int) -> Any:
    return (tokens(columns, *lengths) != 0).long()


def test_columns_at_the_end() -> None:
    batch = tokens(256, 80, 100, 60)
    assert told() == {"rows": 7, "columns": 256, "used_columns": 100}
    assert batch[0, 0] == 100, "it is only read"


def test_columns_at_the_begin() -> None:
    batch = tokens(256, 80, 100, left=True, pad=50256)
    assert told() == {"rows": 7, "columns": 256, "used_columns": 100}
    del batch


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.bool, torch.uint8])
def test_a_mask_of_any_type(kind: Any) -> None:
    batch = mask(128, 30, 40).to(kind)
    assert told() == {"rows": 7, "columns": 128, "used_columns": 40}
    del batch


def test_the_one_with_most_padding() -> None:
    batches = [tokens(256, 250), tokens(512, 100), tokens(128, 20)]
    assert told() == {"rows": 7, "columns": 512, "used_columns": 100}
    del batches


def test_labels_that_are_shifted_are_not_the_batch() -> None:
    """A loss of a language model pads its labels by one column before it shifts them."""
    batches = [tokens(256, 80), mask(256, 80), tokens(257, 80, pad=-100)]
    assert told() == {"rows": 7, "columns": 256, "used_columns": 80}
    del batches


@pytest.mark.parametrize(
    "make",
    [
        lambda: tokens(256, 80, 256),
        lambda: tokens(256, 231),
        lambda: torch.zeros(7, 256, dtype=torch.long),
        lambda: torch.arange(256).expand(7, 256).contiguous(),  # positions
        lambda: torch.nn.functional.one_hot(torch.arange(7), 256),
        lambda: torch.arange(7 * 256).view(7, 256) % 2 * (torch.arange(256) < 100),  # labels
        lambda: tokens(256, 80).float(),
        lambda: tokens(63, 20),
        lambda: tokens(512, 80).T.contiguous().T,
    ],
    ids=["full", "nearly", "zeros", "positions", "one_hot", "labels", "float", "narrow", "strided"],
)
def test_what_is_no_padded_batch(make: Callable[[], Any]) -> None:
    table = make()
    assert told() is None
    del table


def test_a_table_that_is_used_in_full_says_more_than_a_mask_or_labels() -> None:
    batch = tokens(256, 256, 200)
    others = [
        batch == 0,  # of padding, where PyTorch's own layers have it
        tokens(256, 60, left=True, pad=-100),  # labels of answers alone
        torch.arange(256).expand(7, 256).contiguous(),
    ]
    assert told() is None
    del batch, others


def test_a_mask_of_padding_alone() -> None:
    """At its begin it would mark what is used, in every batch that is padded at the end."""
    batch = tokens(256, 100, 80)
    padding = batch == 0
    del batch
    assert told() == {"rows": 7, "columns": 256, "used_columns": 100}
    del padding


def test_positions_say_nothing_of_padding() -> None:
    batches = [tokens(256, 80, 60), torch.arange(256).expand(7, 256).contiguous()]
    assert told() == {"rows": 7, "columns": 256, "used_columns": 80}
    del batches


def test_a_slice_of_a_larger_table_is_read_where_it_begins() -> None:
    whole = torch.cat([tokens(128, 128), tokens(128, 30)])
    batch = whole[7:]
    assert told() == {"rows": 7, "columns": 128, "used_columns": 30}
    del whole, batch


def test_a_table_of_a_whole_data_set_is_not_read() -> None:
    batch = torch.zeros(9, 1 << 18, dtype=torch.long)
    batch[:, :1000] = torch.arange(1, 1001)
    assert told() is None
    del batch


@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
def test_labels_that_no_loss_looks_at(kind: Any) -> None:
    """Of several tables the one with most of them; numbers that are not -100 are none."""
    tables = [mask(256, 80).to(kind), tokens(512, 100, pad=-100).to(kind), tokens(128, 20, pad=-1)]
    ignored = ignored_labels(batch_numbers("cpu", ctypes.string_at).tables)
    assert ignored == {"rows": 7, "columns": 512, "ignored": 7 * 412}
    del tables


def test_a_batch_without_labels() -> None:
    batch = tokens(256, 80)
    assert ignored_labels(batch_numbers("cpu", ctypes.string_at).tables) is None
    del batch


def test_a_read_that_fails_costs_the_padding_alone() -> None:
    def fails(address: int, size_bytes: int) -> bytes:
        raise OSError(700, "cuMemcpyDtoH failed")

    batch = tokens(256, 80)
    assert batch_numbers("cpu", fails).tables == []
    del batch


@pytest.mark.parametrize("kind", ["cpu", "xpu"])
def test_only_cuda_is_read(kind: str) -> None:
    batch = tokens(256, 80)
    assert batch_numbers(kind).tables == []
    del batch


def test_nothing_is_read_in_a_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "initialized_group", object)
    assert not module._may_read(torch, "cuda")


@pytest.mark.parametrize("is_capturing", [False, True])
def test_nothing_is_read_while_a_graph_is_captured(
    monkeypatch: pytest.MonkeyPatch, is_capturing: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: is_capturing)
    assert module._may_read(torch, "cuda") is not is_capturing


@given(st.data())
def test_every_column_after_the_used_ones_is_alike(data: st.DataObject) -> None:
    columns, rows = data.draw(st.integers(2, 12)), data.draw(st.integers(1, 4))
    numbers = st.lists(st.integers(0, 3), min_size=columns, max_size=columns)
    table = [data.draw(numbers) for _ in range(rows)]
    used = used_columns(bytes(chain(*table)), columns, 1)
    at_end = chain(*(row[used:] for row in table))
    at_begin = chain(*(row[: columns - used] for row in table))
    assert used == columns or 1 in (len(set(at_end)), len(set(at_begin)))
