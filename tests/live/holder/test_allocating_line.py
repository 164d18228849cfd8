"""The line that asks for the memory of what is kept, where only the source tells."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import vramlens  # noqa: E402

PARTIALS = """\
import functools
listeners = []
def on(listener):
    listeners.append(listener)
def keep_features(number):
    features = torch.zeros(4096) + number
    on(functools.partial(print, {bound}))
"""


@pytest.mark.parametrize("bound", ["features", "number, file=features"])
def test_what_a_partial_binds_was_made_before_it(
    load_program: Callable[..., types.ModuleType], bound: str
) -> None:
    program = load_program(PARTIALS.replace("{bound}", bound))
    watch = vramlens.LeakWatch()
    for number in range(12):
        thread = threading.Thread(target=program.keep_features, args=(number,))
        thread.start()
        thread.join()
        watch.step()
    (leak,) = watch.report().found
    assert (leak.owner.line, leak.line, leak.function) == (4, 6, "keep_features")
