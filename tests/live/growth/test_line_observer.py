"""The line that is named for what several lines made."""

from __future__ import annotations

from vramlens.live.growth.line_observer import Line, common_line

STEP: Line = ("train.py", 100, "train")
LOAD: Line = ("train.py", 90, "train")
LAYER: Line = ("model.py", 40, "forward")
OTHER: Line = ("model.py", 41, "forward")
BATCH: Line = ("data.py", 7, "batches")


def test_the_line_that_made_nearly_all_is_named() -> None:
    """Not the caller's that it shares with what little another line made."""
    assert common_line([((STEP, LAYER), 128), ((LOAD, BATCH), 1)]) == LAYER
    assert common_line([((STEP, LAYER), 128), ((STEP,), 1)]) == LAYER


def test_of_lines_that_share_it_the_heaviest_in_their_common_function_is() -> None:
    assert common_line([((STEP, LAYER), 30), ((STEP, OTHER), 20)]) == LAYER
    assert common_line([((STEP, LAYER), 30), ((LOAD, BATCH), 20)]) == STEP
    assert common_line([((STEP, LAYER), 30), ((STEP, BATCH), 20)]) == STEP
    assert common_line([((STEP,), 30), ((STEP, LAYER), 20)]) == STEP


def test_without_any_line_none_is_named() -> None:
    assert common_line([]) is None
    assert common_line([((), 5)]) is None
    assert common_line([((LAYER,), 5), ((BATCH,), 5)]) is None
