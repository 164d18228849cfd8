"""What comes first among the findings of a failure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.recordings import DATA
from vramlens import load
from vramlens.analyses.extent import Extent
from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.replay.need.advice_order import order_of_advice, rank_of
from vramlens.units import GIB, MIB

ORDER = ("leak", "smaller_batch")


def finding(name: str, size_bytes: int) -> Finding:
    return Finding(
        id=name, verdict=Verdict.LIKELY, title=name, bytes=size_bytes, fix=f"mend {name}"
    )


def test_a_leak_of_some_kilobytes_is_told_last() -> None:
    small, large = finding("leak", 512), finding("leak", 64 * MIB)
    others = [finding("smaller_batch", GIB), finding("activations", GIB)]
    ordered = sorted([small, *others, large], key=lambda one: rank_of(one, ORDER, GIB))
    assert ordered == [large, *others, small]


def test_where_the_capacity_is_unknown_no_leak_is_slight() -> None:
    leak, batch = finding("leak", 512), finding("smaller_batch", GIB)
    assert rank_of(leak, ORDER, None) < rank_of(batch, ORDER, None)


def test_what_repeats_inside_a_step_is_not_advised_as_a_leak_first() -> None:
    """A loop over tokens keeps what its one backward pass needs: the setting that gets past this
    request really fails, too.
    """
    findings = load(DATA / "failures/policy_gradient.cap45.vram").explain().findings
    ids = [one.id for one in findings]
    assert ids[0] == "process_limit"
    assert "smaller_batch" not in ids
    assert ids.index("leak") < ids.index("settings_may_help")


@pytest.mark.parametrize(("kept_rows", "is_first"), [([0, 1], True), ([2, 3], False)])
def test_who_keeps_most_bytes_of_the_largest_leak_comes_before_it(
    kept_rows: list[int], *, is_first: bool
) -> None:
    """Each step leaves a batch and its labels; another line leaves a little."""
    sizes = np.array([64, 64, 1, 1, 2, 2]) * MIB
    oom = load(DATA / "failures/policy_gradient.cap45.vram").explain().oom
    assert oom is not None

    def keeping(name: str, rows: list[int]) -> Finding:
        extent = Extent(0, np.array(rows, np.int64))
        return replace(finding(name, int(sizes[rows].sum())), extent=extent)

    store = replace(keeping("kept_in_store", kept_rows), bytes=10 * GIB)
    order = order_of_advice(
        oom,
        [keeping("leak", [4, 5]), keeping("leak", [0, 1, 2, 3]), store],
        sizes,
        leaking=True,
        only_program_keeps=False,
        missing_bytes=0,
    )
    assert (order.index("kept_in_store") < order.index("leak")) == is_first
