"""Charts of a history, as rows of block characters."""

from __future__ import annotations

from collections.abc import Sequence

from vramlens.monitor.top.history import Point

_BARS = " ▁▂▃▄▅▆▇█"


def chart(
    points: Sequence[Point], width: int, height: int, seconds: float, highest: float
) -> list[str]:
    """Rows of bars from top to bottom, the newest at the right; a column shows the highest value of
    its time.

    Args:
        points: seconds and values, oldest first.
        seconds: the time from the left edge to the right.
        highest: the value that fills the whole height.
    """
    cells = [-1.0] * max(0, width)
    if points and width > 0 and highest > 0:
        newest = points[-1][0]
        for at, height_of_cell in reversed(points):
            place = width - 1 - int((newest - at) * width / seconds)
            if place < 0:
                break
            cells[place] = max(cells[place], height_of_cell)
        _fill(cells)
    eighths = [
        0
        if height_of_cell < 0
        else max(1, min(8 * height, round(height_of_cell / highest * 8 * height)))
        for height_of_cell in cells
    ]
    return [
        "".join(_BARS[max(0, min(8, level - 8 * row))] for level in eighths)
        for row in range(height - 1, -1, -1)
    ]


def _fill(cells: list[float]) -> None:
    """Gives columns between two looks the value of the earlier one: there are more columns than
    seconds.
    """
    last = -1.0
    for place, cell in enumerate(cells):
        if cell < 0:
            cells[place] = last
        else:
            last = cell
