"""What training does with a rank's parameters, as its summary has it: few groups, and no names of all."""

from __future__ import annotations

import json

import numpy as np
import pytest

from vramlens.fleet.summary_json import summary_from_json, summary_to_json
from vramlens.ranks import RankSummary
from vramlens.ranks.parameter_groups import modules_of, parameter_groups
from vramlens.ranks.rank_summary import ParameterGroup
from vramlens.trace import AT_THE_END, ParameterUse, TensorKind, TensorNames
from vramlens.units import MIB

EARLY = 1_700_000_000_000_000
_Row = tuple[str, ParameterUse, int]


def names_of(*rows: _Row, kind: TensorKind = TensorKind.PARAMETER, mib: int = 4) -> TensorNames:
    """Names of parameters: each with its use, and when it was named."""
    count = len(rows)
    return TensorNames(
        device=np.zeros(count, np.int32),
        address=np.arange(count, dtype=np.uint64),
        size_bytes=np.full(count, mib * MIB, np.int64),
        kind=np.full(count, kind, np.uint8),
        use=np.array([use for _, use, _ in rows], np.uint8),
        time_us=np.array([time for *_, time in rows], np.int64),
        name=tuple(name for name, *_ in rows),
    )


def layers(use: ParameterUse, count: int, root: str = "model", time: int = EARLY) -> list[_Row]:
    return [
        (f"{root}.layers.{layer}.linear{number}.weight", use, time)
        for layer in range(count)
        for number in (1, 2)
    ]


def test_layers_are_one_group() -> None:
    head = ("head.weight", ParameterUse.STEPPED, EARLY)
    groups = parameter_groups(names_of(*layers(ParameterUse.FROZEN, 12), head), 0, 100)
    told = [(group.modules, group.use, group.count, group.bytes) for group in groups]
    assert told == [
        ("model.layers.{0-11}.linear{1-2}", "frozen", 24, 96 * MIB),
        ("head", "stepped", 1, 4 * MIB),
    ]
    assert [modules_of(group) for group in groups] == ["layers.{}.linear{}", ""]


def test_of_two_uses_the_digests_add_up() -> None:
    """So that ranks that freeze other layers know that they have the same."""
    frozen, all_stepped = layers(ParameterUse.FROZEN, 12), layers(ParameterUse.STEPPED, 12, "net")
    both = parameter_groups(names_of(*frozen[:10], *all_stepped[10:]), 0, 100)
    (whole,) = parameter_groups(names_of(*all_stepped), 0, 100)
    assert {group.modules for group in both} == {
        "model.layers.{0-4}.linear{1-2}",
        "net.layers.{5-11}.linear{1-2}",
    }
    assert sum(group.digest for group in both) % (1 << 48) == whole.digest
    (larger,) = parameter_groups(names_of(*all_stepped, mib=8), 0, 100)
    assert larger.digest != whole.digest


def test_what_counts_is_the_use_after_two_steps() -> None:
    """Later on layers may be thawed, and a rank that failed tells of a later moment."""
    early = layers(ParameterUse.FROZEN, 2)
    late = layers(ParameterUse.STEPPED, 2, time=AT_THE_END)
    (group,) = parameter_groups(names_of(*late, *early), 0, 100)
    assert group.use == "frozen"
    assert parameter_groups(names_of(*late), 0, 100) == ()
    assert parameter_groups(names_of(*late), 0, 2) != ()


@pytest.mark.parametrize(
    "names",
    [
        None,
        names_of(*layers(ParameterUse.UNKNOWN, 2)),
        names_of(*layers(ParameterUse.STEPPED, 2), kind=TensorKind.BUFFER),
        names_of(("model.0.weight (all-gathered)", ParameterUse.FROZEN, EARLY)),
    ],
    ids=["no names", "no optimizer", "buffers", "gathered"],
)
def test_without_a_use_there_is_no_group(names: TensorNames | None) -> None:
    assert parameter_groups(names, 0, 100) == ()


def test_a_parameter_of_another_device_is_not_its_own() -> None:
    assert parameter_groups(names_of(*layers(ParameterUse.STEPPED, 2)), 1, 100) == ()


def test_names_without_modules_or_with_braces_are_taken_as_they_are() -> None:
    named = ("w", "optimizer.params['a{3}'][0]", "m.{}.b", "m.3.b", "m.{0-2}.b")
    rows = [(name, ParameterUse.STEPPED, EARLY) for name in named]
    modules = {group.modules for group in parameter_groups(names_of(*rows), 0, 100)}
    assert modules == {"w", "optimizer", "m.{}", "m.3", "m.{0-2}"}


def test_a_summary_keeps_them_and_an_older_one_has_none() -> None:
    group = ParameterGroup("model.layers.{0-11}.mlp", "frozen", 24, 96 * MIB, 123)
    summary = RankSummary(rank=0, source="rank0.vram", parameters=(group,))
    text = summary_to_json(summary)
    assert summary_from_json(text) == summary
    older = json.loads(text)
    del older["parameters"]
    assert summary_from_json(json.dumps(older)).parameters == ()
