"""Texts made to be slow: the time that they take to be searched grows as they do, and no faster."""

from __future__ import annotations

import time
from collections.abc import Callable

from vramlens.read.oom.oom_text import find_oom_messages


def check_time_is_linear(text_of: Callable[[int], bytes], size: int) -> None:
    """Searches a text of about a size, and one ten times as long."""

    def seconds(size: int) -> float:
        text = text_of(size)
        began = time.process_time()
        find_oom_messages(text)
        return time.process_time() - began

    small, large = seconds(size), seconds(10 * size)
    assert large < 10 * 3 * small + 0.5
