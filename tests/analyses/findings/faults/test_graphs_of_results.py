"""Graphs of earlier steps that results keep: sums, averages and lists of losses that nobody detached."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.units import MIB

USER = "/home/user/train.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 5, "load"),),
    "layer": ((f"{TORCH}/nn/modules/linear.py", 134, "forward"), CALL, (USER, 20, "step")),
    "entropy": ((USER, 25, "step"),),
    "average": ((USER, 47, "push"), (USER, 26, "step")),
    "loss": ((f"{TORCH}/nn/functional.py", 3504, "cross_entropy"), (USER, 21, "step")),
    "backward": ((f"{TORCH}/_tensor.py", 600, "backward"), (USER, 61, "main")),
    "step": ((f"{TORCH}/optim/adam.py", 300, "step"), (USER, 62, "main")),
}


def trained(results: list[str], *, steps: int = 6, in_graph: bool = True) -> MadeRun:
    """A run each of whose steps leaves 40 MiB behind; its results have these names."""
    run = MadeRun(FRAMES)
    run.asks("weights", 20, name="model.weight", kind="parameter")
    for _ in range(steps):
        passing = run.asks("layer", 30, module="model")
        run.frees(run.asks("backward", 1), passing)
        run.frees(run.asks("step", 1))
        name = "float32[1024, 10240] tensor" if in_graph else "Trainer.batches[0]"
        run.asks("entropy", 40, name=name, in_graph=in_graph)
    for result in results:
        run.asks("average", 512 / MIB, name=result, in_graph=True)
    run.asks("layer", 30, module="model")
    return run


@pytest.mark.parametrize(
    ("results", "store"),
    [
        (["Stats.values['entropy']"], "Stats.values['entropy']"),
        (["Trainer.losses[0]", "Trainer.losses[1]"], "Trainer.losses"),
        (["loss", "Trainer.losses[1]"], "Trainer.losses"),
        (["losses[0]"], "losses"),
        ([], ""),
        (["loss"], ""),  # that of the latest step
        (["local of main(), call 2"], ""),
    ],
)
def test_who_keeps_results_with_their_graphs(
    tmp_path: Path, results: list[str], store: str
) -> None:
    answer = trained(results).fails("layer", 60, tmp_path)
    finding = finding_of(answer, "graphs_of_results")
    assert (finding is not None) == bool(store)
    if finding is not None:
        assert answer.findings[0] == finding
        assert finding.title.startswith(f"{store} keeps a result that requires gradients")
        assert f"what goes into {store} (up to " in (finding.fix or "")
        assert finding.bytes == 5 * 40 * MIB  # the sixth is of the step that runs
        assert "leak" not in {other.id for other in answer.findings}


def test_the_latest_loss_may_be_kept_for_nothing_else(tmp_path: Path) -> None:
    """A function of PyTorch returned it: what keeps the graph may be another variable."""
    run = trained([])
    run.asks("loss", 512 / MIB, name="Trainer.last_loss", in_graph=True)
    finding = finding_of(run.fails("layer", 60, tmp_path), "graphs_of_results")
    assert finding is None or finding.verdict == "possible"


def test_the_line_is_that_of_the_store(tmp_path: Path) -> None:
    run = trained(["Stats.values['entropy']"])
    run.asks("layer", 1, name="local of forward()", in_graph=True, module="model")
    finding = finding_of(run.fails("layer", 60, tmp_path), "graphs_of_results")
    assert finding is not None
    assert finding.place is not None
    assert finding.place.line == 47


def test_what_a_store_keeps_without_a_graph_is_another_fault(tmp_path: Path) -> None:
    run = trained(["Stats.values['loss']"], in_graph=False)
    assert finding_of(run.fails("layer", 60, tmp_path), "graphs_of_results") is None


def test_the_graph_of_one_step_is_no_fault(tmp_path: Path) -> None:
    run = trained(["Stats.values['loss']"], steps=2)
    assert finding_of(run.fails("layer", 60, tmp_path), "graphs_of_results") is None


def test_what_a_graph_made_is_no_stored_data(tmp_path: Path) -> None:
    """Without a name of what keeps it, the leak itself is sure of the graph."""
    answer = trained([], steps=12).fails("layer", 60, tmp_path)
    leak = finding_of(answer, "leak")
    assert leak is not None
    assert leak.verdict == "likely"
    assert "`.detach()` or `.item()`" in (leak.fix or "")
