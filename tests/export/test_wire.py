"""Protobuf bytes: what is written is what the encoding's rules read, one at a time and many at
once.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.protobuf_reader import fields, one, varint_at
from vramlens.export import wire

WORDS = st.integers(-(2**63), 2**64 - 1)


@settings(deadline=None)
@given(WORDS)
def test_numbers_come_back(value: int) -> None:
    data = wire.varint(value)
    assert varint_at(data, 0) == (value % 2**64, len(data))
    assert len(data) == max(1, -(-(value % 2**64).bit_length() // 7))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5000), WORDS | st.binary(max_size=300)), max_size=10))
def test_fields_come_back(written: list[tuple[int, int | bytes]]) -> None:
    data = b"".join(
        wire.number(field, value) if isinstance(value, int) else wire.message(field, value)
        for field, value in written
    )
    assert list(fields(data)) == [
        (field, value % 2**64 if isinstance(value, int) else value) for field, value in written
    ]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(-(2**63), 2**63 - 1)), max_size=20)
)
def test_many_at_once_are_what_one_at_a_time_are(rows: list[tuple[int, int]]) -> None:
    times, values = (np.array([row[i] for row in rows], np.int64) for i in (0, 1))
    matrix, counts = wire.messages(
        1, *wire.rows(len(rows), wire.tag(8), times, b"\x10\x05", wire.tag(30), values)
    )
    slowly = [
        wire.message(1, wire.number(8, time), wire.number(2, 5), wire.number(30, value))
        for time, value in rows
    ]
    assert matrix[counts].tobytes() == b"".join(slowly)


def test_rows_that_need_a_longer_length_are_refused() -> None:
    with pytest.raises(ValueError, match="127"):
        wire.messages(1, *wire.rows(1, b"x" * 128))


def test_text_that_is_no_text_is_replaced() -> None:
    assert one(wire.text(2, "a\ud800b")) == {2: b"a?b"}
