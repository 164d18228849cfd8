"""Runs a program that calls ``look()`` and prints whose frames are kept: then, and after its
end. ``asks()`` prints whether these are all of the user's.
"""

from __future__ import annotations

import builtins
import sys

from vramlens.capture.triggers.user_program import execute_script
from vramlens.live.growth import last_frames


def _look() -> None:
    last_frames.keep_last(sys._getframe(1))
    print(*[frame.f_code.co_name for frame in last_frames.kept_frames])


def _asks() -> None:
    print(last_frames.keep_last(sys._getframe(1)))


def run(path: str) -> None:
    """Runs the program."""
    builtins.__dict__.update(look=_look, asks=_asks)
    execute_script(path, [])
    print(*[frame.f_code.co_name for frame, _ in last_frames.ended_frames()])
