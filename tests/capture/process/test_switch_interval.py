"""The switch interval: the longest that is wanted holds, and the program gets its own back."""

from __future__ import annotations

import sys

import pytest

from vramlens.capture.process.undisturbed import no_other_thread, switch_interval_of


def test_who_leaves_first_takes_nothing_from_the_other_nor_from_the_program() -> None:
    programs = sys.getswitchinterval()
    look, copy = no_other_thread(), switch_interval_of(0.3)
    look.__enter__()
    assert copy.__enter__() == pytest.approx(0.05)
    assert sys.getswitchinterval() == pytest.approx(0.3)
    look.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(0.3)
    copy.__exit__(None, None, None)
    assert sys.getswitchinterval() == programs
