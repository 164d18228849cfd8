"""Parameters that all ranks keep whole, beside those that they divide."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vramlens.ranks.hints import Hint
from vramlens.ranks.peers.whole_parameters import whole_parameters
from vramlens.ranks.rank_summary import LineUse, ParameterGroup, RankSummary
from vramlens.units import MIB

PEAK = 4096 * MIB


def group(modules: str, size_mib: int, *, parts: int = 0, use: str = "stepped") -> ParameterGroup:
    return ParameterGroup(modules, use, 8, size_mib * MIB, 0, parts=parts)


def rank(number: int, *groups: ParameterGroup, hints: Hint = Hint.SHARDED) -> RankSummary:
    line = LineUse(None, hints, "parameters", "build", MIB, MIB, 1, MIB, 0, 1, True)
    return RankSummary(number, "run", peak_requested_bytes=PEAK, parameters=groups, lines=(line,))


LAYERS = group("model.layers.{0-7}.attn.{0-3}", 300, parts=2)
FSDP = Hint.SHARDED | Hint.FULLY_SHARDED


def test_what_fully_shard_was_not_called_on_is_told() -> None:
    groups = LAYERS, group("model.embed", 400), group("model.norm", 1)
    findings = list(whole_parameters([rank(number, *groups, hints=FSDP) for number in (0, 1)]))
    assert [finding.id for finding in findings] == ["whole_parameters"]
    assert findings[0].bytes == pytest.approx(200.5 * MIB, abs=MIB)
    assert "model.embed" in findings[0].title
    assert "fully_shard on the model itself" in (findings[0].fix or "")


def test_what_a_plan_names_wrong_is_told() -> None:
    groups = LAYERS, group("model.layers.{0-7}.mlp", 500), group("model.embed", 900)
    (finding,) = whole_parameters([rank(number, *groups) for number in (0, 1)])
    assert "model.layers.{0-7}.mlp" in finding.title
    assert "model.embed" not in finding.title
    assert "parallelize_module" in (finding.fix or "")


@pytest.mark.parametrize(
    "groups",
    [
        (LAYERS, group("model.embed", 900)),  # embeddings and norms are whole in many plans
        (LAYERS, group("model.layers.{0-7}.norm", 20)),
        (LAYERS, group("model.layers.{0-7}.mlp", 500, use="frozen")),
        (LAYERS, group("model.layers.{0-7}.experts.{0-3}", 500)),  # each rank has its own
        (group("model.layers.{0-7}.mlp", 500), group("model.embed", 900)),  # DDP divides nothing
    ],
)
def test_what_is_whole_on_purpose_is_not_told(groups: tuple[ParameterGroup, ...]) -> None:
    assert not list(whole_parameters([rank(number, *groups) for number in (0, 1)]))


def test_a_rank_that_divides_all_ends_it() -> None:
    whole = rank(0, LAYERS, group("model.embed", 400), hints=FSDP)
    assert not list(whole_parameters([whole, replace(whole, rank=1, parameters=(LAYERS,))]))
    assert not list(whole_parameters([whole]))


def test_a_mesh_that_shards_over_one_rank() -> None:
    groups = group("model.layers.{0-7}", 900, parts=1), group("model.embed", 100, parts=1)
    ranks = [rank(number, *groups, hints=FSDP) for number in (0, 1)]
    (finding,) = whole_parameters(ranks)
    assert finding.bytes == 500 * MIB
    assert "all 1000.00 MiB of parameters whole" in finding.title
    assert "replicates over the first and shards over the second" in (finding.fix or "")


@pytest.mark.parametrize(
    ("parts", "hints"),
    [(0, FSDP), (1, Hint.SHARDED), (2, FSDP), (1, FSDP | Hint.REPLICATED)],
    ids=["nobody knows", "tensor parallelism", "divided", "replicate()"],
)
def test_what_is_no_such_mesh(parts: int, hints: Hint) -> None:
    groups = (group("model.layers.{0-7}", 900, parts=parts),)
    assert not list(whole_parameters([rank(number, *groups, hints=hints) for number in (0, 1)]))
