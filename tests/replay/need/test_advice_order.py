"""What comes first among the findings of a failure."""

from __future__ import annotations

from support.recordings import DATA
from vramlens import load
from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.replay.need.advice_order import rank_of
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
