"""An attribute that each step enlarges and hands on, beside those that end, shrink or were enlarged once."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.units import MIB

USER = "/home/user/augment.py"
LINE = 51
FRAMES: dict[str, tuple[Frame, ...]] = {
    "edges": ((USER, LINE, "__call__"),),
    "messages": ((USER, 60, "forward"),),
    "backward": ((f"{TORCH}/_tensor.py", 600, "backward"), (USER, 90, "fit")),
    "optimizer": (
        (f"{TORCH}/optim/adamw.py", 600, "_single_tensor_adamw"),
        (f"{TORCH}/optim/optimizer.py", 480, "step"),
        (USER, 91, "fit"),
    ),
}
ENLARGES = "graph.edges = torch.cat([graph.edges, extra], dim=1)"


def grown(sizes: list[int], kind: str = "tensor") -> MadeRun:
    """Steps whose messages are ten times as large as the edges, each of which replaces the one before."""
    run, edges = MadeRun(FRAMES), 0
    for size in sizes:
        earlier, edges = edges, run.asks("edges", size, name="Graph.edges", kind=kind)
        if earlier:
            run.frees(earlier)
        run.frees(run.asks("messages", 10 * size), run.asks("backward", size))
        run.frees(run.asks("optimizer", 2))
    return run


@pytest.mark.parametrize(
    ("sizes", "text", "kind", "is_told"),
    [
        ([*range(10, 30)], ENLARGES, "tensor", True),
        ([*range(10, 30)], "self.edges = torch.cat((self.edges, extra))", "buffer", True),
        ([*range(10, 30)], "self.edges = torch.cat((old, extra))", "tensor", False),
        ([*range(10, 30)], "edges = torch.cat((edges, extra))", "tensor", False),  # a variable
        ([10] * 20, ENLARGES, "tensor", False),
        ([*range(10, 25), 12, 29], ENLARGES, "tensor", False),  # it begins anew
        ([10, 12, 14, 16, 18, 29], ENLARGES, "tensor", False),  # too few to know
    ],
)
def test_what_each_step_enlarges(
    tmp_path: Path, sizes: list[int], text: str, kind: str, *, is_told: bool
) -> None:
    run = grown(sizes, kind)
    answer = run.fails("messages", 10 * sizes[-1], tmp_path, source={(USER, LINE): text})
    finding = finding_of(answer, "enlarged_by_steps")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.place is not None
        assert finding.place.line == LINE
        assert "copy.copy() of the Graph" in (finding.fix or "")
        # edges and request now; edges, those before and messages in the third step
        assert finding.bytes == (29 + 290 - (12 + 120 + 12)) * MIB


def test_a_request_that_is_large_in_every_step_is_another_matter(tmp_path: Path) -> None:
    run = grown([*range(10, 30)])
    answer = run.fails("messages", 100, tmp_path, source={(USER, LINE): ENLARGES})
    assert finding_of(answer, "enlarged_by_steps") is None
