"""The program gets its own switch interval and collector back, and its own setting is known."""

from __future__ import annotations

import gc
import sys

import pytest

from vramlens.capture.process.undisturbed import (
    does_program_collect,
    no_collection,
    no_other_thread,
    switch_interval_of,
)


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


@pytest.mark.parametrize("is_on", [True, False])
def test_the_programs_own_collector_is_known_inside_and_as_it_was_after(is_on: bool) -> None:
    if not is_on:
        gc.disable()
    try:
        outer, inner = no_collection(), no_collection()
        outer.__enter__()
        inner.__enter__()
        outer.__exit__(None, None, None)  # another thread's section may end first
        assert does_program_collect() == is_on
        inner.__exit__(None, None, None)
        assert gc.isenabled() == does_program_collect() == is_on
    finally:
        gc.enable()
