"""What is to come of the list that an optimizer makes for all parameters at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from support.recordings import DATA
from vramlens import load
from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.failure.first_step.optimizer_lists import rest_of_list
from vramlens.trace import OutOfMemory
from vramlens.units import MIB


@pytest.fixture(scope="module")
def view() -> Attribution:
    """Adagrad's second list of 50 tensors, of which four are there: 117 of 962 MiB."""
    return load(DATA / "failures/recommender_amp.cap70.vram").attribution()


@pytest.fixture(scope="module")
def request_(view: Attribution) -> OutOfMemory:
    return view.device.out_of_memory[-1]


def list_rows(view: Attribution, request: OutOfMemory) -> NDArray[np.int64]:
    return np.flatnonzero(view.device.allocations.stack == request.stack)


def test_a_list_will_be_as_long_as_the_one_before_it(
    view: Attribution, request_: OutOfMemory
) -> None:
    assert len(list_rows(view, request_)) == 4
    assert rest_of_list(view, request_) == pytest.approx(845 * MIB, abs=MIB)


def test_a_list_of_other_sizes_tells_nothing(view: Attribution, request_: OutOfMemory) -> None:
    assert rest_of_list(view, replace(request_, size_bytes=request_.size_bytes + 512)) == 0


def test_one_tensor_is_no_list_yet(view: Attribution, request_: OutOfMemory) -> None:
    born = view.device.allocations.born[list_rows(view, request_)]
    assert rest_of_list(view, replace(request_, event=int(born[1]))) == 0
    assert rest_of_list(view, replace(request_, event=int(born[2]))) > 845 * MIB


def test_temporaries_of_one_parameter_after_another_are_no_list(
    view: Attribution, request_: OutOfMemory
) -> None:
    allocations = view.device.allocations
    died = allocations.died.copy()
    rows = list_rows(view, request_)
    died[rows[:-1]] = allocations.born[rows[1:]]
    one_by_one = replace(view.device, allocations=replace(allocations, died=died))
    assert rest_of_list(replace(view, device=one_by_one), request_) == 0


def test_the_steps_need_holds_the_whole_list(view: Attribution, request_: OutOfMemory) -> None:
    oom = load(DATA / "failures/recommender_amp.cap70.vram").explain().oom
    assert oom is not None
    assert oom.need is not None
    assert oom.need.low_bytes > 4890 * MIB  # 4142 MiB with this request; it took 6210 MiB
    assert "all parameters at once" in oom.need.reason
    assert [row.lives for row in oom.settings] == [False] * 4
