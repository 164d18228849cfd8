"""What the spans before a failure left behind."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from support.recordings import DATA
from vramlens import load
from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.failure.likeness.left_behind import passes_give_back
from vramlens.analyses.failure.step_template import Template, template_of


@cache
def view() -> Attribution:
    return load(DATA / "failures/accumulate.cap80.vram").attribution()


def template() -> Template:
    repeated = template_of(view(), view().device.out_of_memory[-1])
    assert repeated is not None
    return repeated


def test_a_micro_batch_leaves_gradients_alone_behind() -> None:
    assert len(template().spans) == 2
    assert not template().whole_steps
    assert passes_give_back(view(), template())


def test_whole_steps_are_no_micro_batches() -> None:
    assert not passes_give_back(view(), replace(template(), whole_steps=True))


def test_gradients_that_no_parameter_has_are_kept_for_more() -> None:
    """Inner steps of meta-learning keep the gradients of each, for the outer step."""
    names = view().names
    unnamed = replace(view(), names=replace(names, row=np.full_like(names.row, -1)))
    assert not passes_give_back(unnamed, template())
