"""Outputs of training steps that are kept until an epoch ends, beside queues and targets that look alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.analyses.finding import Finding
from vramlens.units import MIB

USER = "/home/user/train.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 5, "load"),),
    "data": ((USER, 58, "main"),),
    "layer": ((USER, 20, "forward"), CALL, (USER, 60, "main")),
    "output": ((USER, 21, "merge"), (USER, 61, "main")),
    "backward": ((f"{TORCH}/_tensor.py", 600, "backward"), (USER, 62, "main")),
    "step": ((f"{TORCH}/optim/adam.py", 300, "step"), (USER, 63, "main")),
}
LAYERS, SIZE, EPOCH = 10, 30, 6


class Training:
    """A run of which each step makes an output; its model has 50 MiB of weights."""

    def __init__(self) -> None:
        self.run = MadeRun(FRAMES)
        self.run.asks("weights", 50, name="model.weight", kind="parameter")
        self.runs()

    def runs(self, keeps: str = "", mib: float = SIZE, *, trains: bool = True) -> int:
        """One step; gives the address of what it keeps, an output or its data.

        Args:
            keeps: the part that asks for that; "" where it keeps nothing.
            trains: whether a backward pass follows.
        """
        run = self.run
        kept = run.asks("data", mib) if keeps == "data" else 0
        layers = [run.asks("layer", 1, module=f"model.{layer}") for layer in range(LAYERS)]
        if keeps == "output":
            kept = run.asks("output", mib)
        if trains:
            run.frees(run.asks("backward", 2))
        run.frees(*layers)
        run.frees(run.asks("step", 2))
        return kept

    def has_epoch(self, steps: int = EPOCH, keeps: str = "output", mib: float = SIZE) -> None:
        """An epoch whose steps keep something until it ends."""
        self.run.frees(*[self.runs(keeps, mib) for _ in range(steps)])

    def told(self, folder: Path) -> Finding | None:
        return finding_of(self.run.ends(folder), "collected_outputs")


def test_outputs_that_go_when_the_epoch_ends(tmp_path: Path) -> None:
    training = Training()
    training.has_epoch()
    training.has_epoch()
    finding = training.told(tmp_path)
    assert finding is not None
    assert finding.verdict == "likely"
    assert finding.bytes == (EPOCH - 1) * SIZE * MIB
    assert f"{EPOCH} training steps left as much each" in finding.title
    assert finding.place is not None
    assert finding.place.line == 21
    assert "detach().cpu()" in (finding.fix or "")


def no_second_epoch(training: Training) -> None:
    """What goes when training ends, does not come again."""
    training.has_epoch()
    training.runs()


def a_queue(training: Training) -> None:
    """Each step gives the oldest back."""
    queue = [training.runs("output") for _ in range(EPOCH)]
    for _ in range(EPOCH):
        training.run.frees(queue.pop(0))
        queue.append(training.runs("output"))


def targets_of_the_next_epoch(training: Training) -> None:
    """What an epoch computes, the next one learns from."""
    earlier: list[int] = []
    for _ in range(3):
        outputs = [training.runs("output") for _ in range(EPOCH)]
        training.run.frees(*earlier)
        earlier = outputs


def targets_beside_a_spike(training: Training) -> None:
    """The same, where the peak is before the next epoch begins."""
    earlier = [training.runs("output") for _ in range(EPOCH)]
    training.run.frees(training.run.asks("data", 240))
    for _ in range(2):
        outputs = [training.runs("output") for _ in range(EPOCH)]
        training.run.frees(*earlier)
        earlier = outputs


def now_and_then(training: Training) -> None:
    """Every third step keeps something."""
    for _ in range(2):
        kept = [training.runs("" if step % 3 else "output", 90) for step in range(15)]
        training.run.frees(*filter(None, kept))


def passes_without_training(training: Training) -> None:
    """Rollouts, and one backward pass after all of them."""
    for _ in range(2):
        kept = [training.runs("output", trains=False) for _ in range(EPOCH)]
        training.run.frees(training.run.asks("backward", 2), *kept)


def epochs(**sizes: object) -> Callable[[Training], None]:
    def run(training: Training) -> None:
        for _ in range(2):
            training.has_epoch(**sizes)  # type: ignore[arg-type]

    return run


@pytest.mark.parametrize(
    "program",
    [
        no_second_epoch,
        a_queue,
        targets_of_the_next_epoch,
        targets_beside_a_spike,
        now_and_then,
        passes_without_training,
        epochs(steps=3, mib=90),
        epochs(mib=4),
        epochs(keeps="data"),
        epochs(mib=50),
    ],
    ids=[
        "one epoch",
        "queue",
        "targets",
        "targets beside a spike",
        "now and then",
        "rollouts",
        "few",
        "small",
        "data",
        "as large as weights",
    ],
)
def test_what_is_no_list_of_outputs(tmp_path: Path, program: Callable[[Training], None]) -> None:
    training = Training()
    program(training)
    assert training.told(tmp_path) is None
