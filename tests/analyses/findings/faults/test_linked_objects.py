"""Objects that keep a tensor each and lead to others of their class, and models that a cache keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.analyses.finding import Finding

USER = "/home/user/search.py"
FRAMES: dict[str, tuple[Frame, ...]] = {
    "expand": ((USER, 39, "expand"),),
    "model": ((USER, 12, "build"),),
    "layer": ((f"{TORCH}/nn/modules/linear.py", 134, "forward"), (USER, 20, "step")),
    "optimizer": ((f"{TORCH}/optim/adamw.py", 300, "step"), (USER, 30, "main")),
}


@pytest.mark.parametrize(
    ("name", "links", "count", "is_told"),
    [
        ("Node.latent", ".parent, .children", 12, True),
        ("Node.children[3].latent", ".parent, .children", 12, True),
        ("Node.latent", "", 12, False),
        ("Node.latent", ".parent", 4, False),
    ],
)
def test_nodes_that_lead_to_each_other(
    tmp_path: Path, name: str, links: str, count: int, *, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    run.asks("model", 16, name="model.weight", kind="parameter")
    for _ in range(count):
        run.asks("expand", 16, name=name, kept_by=links)
    answer = run.fails("expand", 16, tmp_path)
    finding = finding_of(answer, "linked_objects")
    assert (finding is not None) == is_told
    if finding is not None:
        assert "12 tensors in .latent of Node objects" in finding.title
        assert finding.verdict == "possible"  # in no step
        assert finding.evidence == (f"a Node that is in use keeps all that {links} lead to",)
        assert "node.parent = None" in (finding.fix or "")


def test_a_few_beside_much_else_are_not_told(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("model", 1024, name="model.weight", kind="parameter")
    for _ in range(12):
        run.asks("expand", 16, name="Node.latent", kept_by=".parent")
    assert finding_of(run.fails("expand", 16, tmp_path), "linked_objects") is None


@pytest.mark.parametrize(("steps", "verdict"), [(1, "possible"), (2, "possible"), (3, "likely")])
def test_layers_that_know_the_next_are_there_from_the_start(
    tmp_path: Path, steps: int, verdict: str
) -> None:
    """Only what is made in several steps has grown."""
    run = MadeRun(FRAMES)
    run.asks("model", 16, name="model.weight", kind="parameter")
    for number in range(12):
        if number % (12 // steps) == 0:
            run.frees(run.asks("optimizer", 1))
        run.asks("expand", 16, name="Layer.state", kept_by=".next")
    finding = finding_of(run.fails("expand", 16, tmp_path), "linked_objects")
    assert finding is not None
    assert finding.verdict == verdict


CACHE = "unlimited lru_cache of Net.bias()"


def told_of_folds(folder: Path, caches: list[tuple[str, str]]) -> Finding | None:
    """What is told of models that were trained one after the other, before the one that runs.

    Args:
        caches: of each, the caches that have its body and its head as an argument.
    """
    run = MadeRun(FRAMES)
    for fold, kept_by in enumerate([*caches, ("", "")]):
        for part, cache in zip(("body", "head"), kept_by, strict=True):
            name = f"Net_{fold}.{part}.weight"
            run.asks("model", 50, name=name, kind="parameter", kept_by=cache)
            run.asks("optimizer", 50, name=f"optimizer.m[{name}]", kind="optimizer_state")
        run.frees(run.asks("layer", 10, module=f"Net_{fold}.body"))
    return finding_of(run.fails("layer", 60, folder), "finished_models")


@pytest.mark.parametrize(
    ("caches", "is_named"),
    [
        ([(CACHE, CACHE), (CACHE, CACHE)], True),
        ([(CACHE, ""), (CACHE, "")], False),  # a cache of one layer keeps no model
        ([("", CACHE), ("", CACHE)], False),
        ([(CACHE, CACHE), ("", "")], False),  # something else keeps the other model
    ],
)
def test_a_cache_that_has_all_of_each_model_keeps_them(
    tmp_path: Path, caches: list[tuple[str, str]], *, is_named: bool
) -> None:
    finding = told_of_folds(tmp_path, caches)
    assert finding is not None
    assert any(CACHE in line for line in finding.evidence) == is_named
    assert ("take the cache off" in (finding.fix or "")) == is_named


def test_layers_that_each_have_a_cache_of_their_own(tmp_path: Path) -> None:
    """No cache has all of a model, and together they have."""
    finding = told_of_folds(tmp_path, [(CACHE, "lru_cache of Head.mask()")] * 2)
    assert finding is not None
    assert finding.evidence[1] == (
        "the lru_cache of Head.mask() and the unlimited lru_cache of Net.bias() have them, or layers"
        " of them, as arguments, and keep these"
    )
    assert (finding.fix or "").startswith("take the caches off these functions")


def test_many_caches_of_layers_are_counted(tmp_path: Path) -> None:
    caches = [(f"lru_cache of Body{fold}.f()", f"lru_cache of Head{fold}.f()") for fold in range(2)]
    finding = told_of_folds(tmp_path, caches)
    assert finding is not None
    assert "the lru_cache of Head0.f() and 1 more cache have them, or layers" in finding.evidence[1]
