"""Columns: what is written is what a reader finds, however the numbers are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.page_data import PageData
from vramlens.view.columns import Columns

NUMBERS = st.lists(
    st.one_of(
        st.integers(0, 3), st.integers(0, 300), st.integers(0, 1 << 33), st.integers(0, 1 << 53)
    ),
    max_size=40,
)


@settings(deadline=None)
@given(st.lists(st.tuples(NUMBERS, st.booleans()), max_size=5))
def test_columns_come_back(columns):
    written = Columns()
    numbers = [
        written.add(np.array(values, np.int64), differences=delta) for values, delta in columns
    ]
    found = PageData(written.container({"x": 1}))
    assert found.header["x"] == 1
    assert [found.column(number) for number in numbers] == [values for values, _ in columns]


@pytest.mark.parametrize(
    "kind", [np.uint8, np.uint16, np.uint32, np.int32, np.int64, np.uint64, np.bool_]
)
def test_every_kind_of_column(kind):
    values = np.array([0, 1, 1, 0], kind)
    written = Columns()
    number = written.add(values)
    assert PageData(written.container({})).column(number) == [0, 1, 1, 0]


def test_what_no_browser_can_hold_is_cut():
    written = Columns()
    number = written.add(np.array([2**64 - 1, 5], np.uint64))
    assert PageData(written.container({})).column(number) == [2**53, 5]


@pytest.mark.parametrize("differences", [False, True])
def test_a_long_column_comes_back(differences):
    """It is coded block by block; each block has numbers of another width."""
    values = np.concatenate([np.arange(40_000) << shift for shift in (0, 20, 8, 37)])
    written = Columns()
    number = written.add(values, differences=differences)
    assert PageData(written.container({})).column(number) == values.tolist()
