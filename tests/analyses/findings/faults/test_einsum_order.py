"""Another order of two einsums gives the same numbers, and nothing with as many dimensions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramlens.analyses.findings.faults.expressions.einsum_order import other_order


def test_a_matrix_product_state() -> None:
    order = other_order("asc,bsd->abcd", "ab,abcd->cd", pair_stands_first=False)
    assert order is not None
    assert (order.first, order.second, order.takes_left) == ("ab,asc->bsc", "bsc,bsd->cd", True)


@pytest.mark.parametrize(
    ("pair", "whole"),
    [
        ("ab,bc->ac", "ac,cd->ad"),  # a chain of matrices: another order has as many dimensions
        ("ab,bc,cd->ad", "ad,de->ae"),
        ("ab,bc", "ac,cd->ad"),
        ("ab,bc->ac", "aa,ad->d"),
        ("...a,ab->...b", "b,bc->c"),
    ],
)
def test_what_has_no_better_order(pair: str, whole: str) -> None:
    assert other_order(pair, whole, pair_stands_first=True) is None


@given(data=st.data(), pair_stands_first=st.booleans())
def test_the_numbers_stay(data: st.DataObject, *, pair_stands_first: bool) -> None:
    letters = "abcde"
    sizes = {letter: data.draw(st.integers(1, 3)) for letter in letters}
    factor = st.lists(st.sampled_from(letters), min_size=1, max_size=4, unique=True).map("".join)
    left, right, new = data.draw(factor), data.draw(factor), data.draw(factor)
    shared = sorted({*left, *right})
    output = "".join(data.draw(st.lists(st.sampled_from(shared), min_size=1, unique=True)))
    target = "".join(
        data.draw(st.lists(st.sampled_from(sorted({*output, *new})), min_size=1, unique=True))
    )
    pair = f"{left},{right}->{output}"
    whole = f"{output},{new}->{target}" if pair_stands_first else f"{new},{output}->{target}"
    order = other_order(pair, whole, pair_stands_first=pair_stands_first)
    if order is None:
        return
    numbers = np.random.default_rng(0)
    tensors = {
        name: numbers.integers(-3, 4, [sizes[letter] for letter in name])
        for name in (left, right, new)
    }
    both = np.einsum(pair, tensors[left], tensors[right])
    operands = (both, tensors[new]) if pair_stands_first else (tensors[new], both)
    near, far = (left, right) if order.takes_left else (right, left)
    between = np.einsum(order.first, tensors[new], tensors[near])
    assert between.ndim < len(output)
    assert np.array_equal(
        np.einsum(order.second, between, tensors[far]), np.einsum(whole, *operands)
    )
