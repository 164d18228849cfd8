"""Objects that keep a tensor each and lead to others of their class, and models that a cache keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import Frame, MadeRun, finding_of

USER = "/home/user/search.py"
FRAMES: dict[str, tuple[Frame, ...]] = {
    "expand": ((USER, 39, "expand"),),
    "model": ((USER, 12, "build"),),
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
        assert "node.parent = None" in (finding.fix or "")


def test_a_few_beside_much_else_are_not_told(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("model", 1024, name="model.weight", kind="parameter")
    for _ in range(12):
        run.asks("expand", 16, name="Node.latent", kept_by=".parent")
    assert finding_of(run.fails("expand", 16, tmp_path), "linked_objects") is None
