"""Garbage in reference cycles, which fills the GPU until Python's collector runs."""

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
    ("circle", "remedy"),
    [
        ("Node.children[0].parent", "hold .parent weakly"),
        ("Node.parent.children[1]", "hold .parent weakly"),
        ("Net.head._forward_hooks[3] -> Runner.model", "call handle.remove()"),
        ("Node", "hold the link that leads back to its owner weakly"),
        ("Cache.session.cache", "hold the link that leads back to its owner weakly"),
        ("", None),
    ],
)
def test_it_is_first_where_it_is_much(tmp_path: Path, circle: str, remedy: str | None) -> None:
    run = MadeRun(FRAMES)
    run.asks("model", 16, name="model.weight", kind="parameter")
    for _ in range(12):
        run.asks("expand", 16, name="Node.latent", kept_by=".parent, .children", circle=circle)
    answer = run.fails("expand", 16, tmp_path)
    finding = finding_of(answer, "uncollected_garbage")
    assert (finding is not None) == (remedy is not None)
    if finding is not None and remedy is not None:
        assert finding == answer.findings[0]
        assert finding.bytes == 192 << 20
        assert "gc.collect()" in (finding.fix or "")
        assert remedy in (finding.fix or "")
        assert finding_of(answer, "linked_objects") is None


def test_a_little_garbage_is_not_told(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("model", 1024, name="model.weight", kind="parameter")
    run.asks("expand", 16, name="Node.latent", circle="Node.children[0].parent")
    assert finding_of(run.fails("expand", 16, tmp_path), "uncollected_garbage") is None
