"""A failed step that differs from the earlier one it repeats: made event by event."""

from __future__ import annotations

from pathlib import Path

from support.made_failures import MadeRun
from vramlens.analyses.explanation import OomVerdict
from vramlens.units import MIB

FRAMES = {
    part: (("/home/user/train.py", line, part),)
    for part, line in {"frozen": 15, "trained": 20, "backward": 22, "evaluation": 31}.items()
}
FRAMES["adam"] = (("/site-packages/torch/optim/adam.py", 450, "step"),)
TRAINED, BACKWARD, OPTIMIZER = ("trained", 24), ("backward", 40), ("adam", 60)


class Run(MadeRun):
    """Steps of one size, with what else a test makes of them."""

    def __init__(self) -> None:
        super().__init__(FRAMES)

    def trains(self) -> None:
        asked = [self.asks(*part) for part in (TRAINED, BACKWARD, OPTIMIZER) for _ in range(3)]
        self.frees(*reversed(asked))

    def trains_beside_frozen_layers(self) -> None:
        """Four steps that give back at once what frozen layers compute."""
        for _ in range(4):
            for _ in range(5):
                self.frees(self.asks("frozen", 20))
            self.trains()

    def verdict(self, part: str, mib: int, folder: Path) -> OomVerdict:
        oom = self.fails(part, mib, folder).oom
        assert oom is not None
        return oom


def test_layers_that_are_trained_from_now_on_keep_what_earlier_steps_freed(tmp_path: Path) -> None:
    run = Run()
    run.trains_beside_frozen_layers()
    for _ in range(5):
        run.asks("frozen", 20)
    for _ in range(3):
        run.asks(*TRAINED)
    oom = run.verdict(*BACKWARD, tmp_path)
    assert oom.need is not None
    assert (oom.need.basis, oom.need.peak_reserved_bytes) == ("earlier_step", None)
    assert "this step keeps 100.00 MiB that earlier steps had freed" in oom.need.reason
    # Its own backward pass wants gradients of them, which no earlier step shows.
    shown = (5 * 20 + 3 * (24 + 40 + 60)) * MIB
    assert oom.need.high_bytes is not None
    assert oom.need.high_bytes > shown + 25 * MIB
    assert not any(row.lives for row in oom.settings)


def test_a_step_that_frees_as_the_earlier_ones_has_a_point(tmp_path: Path) -> None:
    run = Run()
    run.trains_beside_frozen_layers()
    for _ in range(5):
        run.frees(run.asks("frozen", 20))
    for _ in range(3):
        run.asks(*TRAINED)
    oom = run.verdict(*BACKWARD, tmp_path)
    assert oom.need is not None
    assert oom.need.floor_bytes == 3 * (24 + 40 + 60) * MIB
    assert oom.need.peak_reserved_bytes is not None
    assert "keeps" not in oom.need.reason


def test_what_an_evaluation_left_in_a_variable_gives_way_to_the_next_ones(tmp_path: Path) -> None:
    """``val = evaluate()`` every second step: of the first, no earlier one was there to give way."""
    run = Run()
    run.trains()
    run.trains()
    for _ in range(3):
        run.asks("evaluation", 30)
    run.trains()
    run.trains()
    for _ in range(2):
        run.asks("evaluation", 30)
    oom = run.verdict("evaluation", 30, tmp_path)
    assert oom.need is not None
    kept, a_step = 3 * 30 * MIB, 3 * (24 + 40 + 60) * MIB
    assert oom.need.floor_bytes == a_step + kept
    # A list would keep both.
    assert oom.need.high_bytes is not None
    assert oom.need.high_bytes >= a_step + 2 * kept
    assert not any(row.lives for row in oom.settings)
