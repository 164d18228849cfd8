"""Rows of a table of relative positions for each pair of them, beside look-ups that are needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.units import MIB

USER = "/home/user/tagger.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 5, "load"),),
    "look_up": ((f"{TORCH}/nn/modules/sparse.py", 190, "forward"), CALL, (USER, 35, "forward")),
    "layer": ((f"{TORCH}/nn/modules/linear.py", 134, "forward"), CALL, (USER, 38, "forward")),
}
EINSUM = 'scores = scores + torch.einsum("bhtd,tsd->bhts", q, self.rel(dist))'


def with_look_ups(*, table: float, beside: int) -> MadeRun:
    run = MadeRun(FRAMES)
    run.asks("weights", table, name="model.attn.rel.weight", kind="parameter")
    run.asks("weights", beside)
    for _ in range(3):
        run.asks("look_up", 400, module="model.attn.rel")
    return run


@pytest.mark.parametrize(
    ("text", "after", "table", "beside", "is_told"),
    [
        (EINSUM, "", 1, 100, True),
        ("scores = q @ self.rel(dist).transpose(-1, -2)", "", 1, 100, True),
        ("table = self.rel(dist)", "scores = torch.matmul(q, table.mT)", 1, 100, True),
        ("table = self.rel(dist)", "scores = scores + table.sum(-1)", 1, 100, False),
        ("x = self.rel(ids)", "x = x + self.positions", 1, 100, False),
        ("x = self.rel(ids)", 'q = torch.einsum("btd,dhk->bthk", x, self.wq)', 1, 100, False),
        ("x = self.rel(ids)", "q = x @ self.wq", 1, 100, False),
        (EINSUM, "", 30, 100, False),  # no row is looked up often
        (EINSUM, "", 1, 9000, False),  # it is not much
        ("scores = torch.einsum('bhtd,tsd->bhts', q, other)", "", 1, 100, False),
    ],
)
def test_look_ups_that_a_product_takes_in(
    tmp_path: Path, text: str, after: str, table: float, beside: int, *, is_told: bool
) -> None:
    run = with_look_ups(table=table, beside=beside)
    source = {(USER, 35): text, (USER, 36): after}
    finding = finding_of(run.fails("layer", 100, tmp_path, source=source), "repeated_rows")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == 3 * 400 * MIB
        assert "self.rel(dist) copies a row of model.attn.rel.weight" in finding.title
        assert "multiply q with the whole table first (q @ weight.T" in (finding.fix or "")
