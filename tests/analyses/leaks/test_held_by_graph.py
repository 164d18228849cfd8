"""What only a graph keeps, and what repeats inside of one pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vramlens.analyses.attribution.repeated_modules import (
    are_layers,
    are_turns_of_one_pass,
    follow_other_modules,
)
from vramlens.analyses.attribution.training import Training
from vramlens.analyses.leaks.evidence import held_by_no_object
from vramlens.units import MIB

EVENTS = 1000


def kept(
    sizes: list[int],
    placed: list[bool],
    *,
    others_placed: bool = True,
    training: Training = Training.SEEN,
    freed: bool = False,
    in_graph: bool = False,
) -> Any:
    """A view in which each step left a block and a number, from one line; the last row is another
    tensor of the program.
    """
    count = len(sizes)
    flags = np.array([*placed, others_placed])
    return SimpleNamespace(
        training=training,
        device=SimpleNamespace(
            events=range(EVENTS),
            allocations=SimpleNamespace(
                free_requested=np.full(count + 1, 5 if freed else EVENTS),
                requested_bytes=np.array([*sizes, MIB]),
                stack=np.zeros(count + 1, np.uint32),
            ),
        ),
        names=SimpleNamespace(
            tensors=range(1),
            placed=flags,
            in_graph=np.full(count + 1, in_graph),
            of_kind=lambda *_: np.arange(count + 1),
        ),
        step=np.arange(count + 1) // 2,
        trace=SimpleNamespace(stacks=range(3)),
    )


ROWS = np.arange(6)
GRAPH = [24 * MIB, 4] * 3
NOWHERE = [False] * 6


@pytest.mark.parametrize(("in_graph", "freed"), [(True, False), (False, False), (True, True)])
def test_what_a_graph_made_needs_no_search(*, in_graph: bool, freed: bool) -> None:
    view = kept([24 * MIB] * 6, NOWHERE, others_placed=False, freed=freed, in_graph=in_graph)
    assert held_by_no_object(view, ROWS) == (in_graph and not freed)


def test_no_object_leads_to_what_a_graph_keeps() -> None:
    assert held_by_no_object(kept(GRAPH, NOWHERE), ROWS)


def test_a_replay_buffer_is_an_object() -> None:
    assert not held_by_no_object(kept(GRAPH, [True, False] * 3), ROWS)


def test_without_a_search_only_a_number_beside_the_rest_tells() -> None:
    assert held_by_no_object(kept(GRAPH, NOWHERE, others_placed=False), ROWS)
    frames = kept([24 * MIB] * 6, NOWHERE, others_placed=False)
    assert not held_by_no_object(frames, ROWS)


@pytest.mark.parametrize(("places", "is_told"), [(5, False), (6, True)])
def test_without_a_search_what_many_places_made_is_of_one_computation(
    places: int, is_told: bool
) -> None:
    """A replay buffer has as many columns as a transition has parts."""
    steps = 4
    view = kept([MIB] * places * steps, [False] * places * steps, others_placed=False)
    rows = np.arange(places * steps)
    view.step[:-1] = rows // places
    view.device.allocations.stack[:-1] = rows % places
    assert held_by_no_object(view, rows) == is_told


def test_small_tensors_were_not_searched_for() -> None:
    assert not held_by_no_object(kept([4096, 4] * 3, NOWHERE), ROWS)


def test_what_was_freed_since_was_not_there_to_be_named() -> None:
    assert not held_by_no_object(kept(GRAPH, NOWHERE, freed=True), ROWS)


def test_without_training_there_is_no_graph() -> None:
    assert not held_by_no_object(kept(GRAPH, NOWHERE, training=Training.ABSENT), ROWS)


def passes(modules: list[int], step: list[int], marked: list[bool] | None = None) -> Any:
    """A view of requests by module and repetition."""
    count = len(modules)
    return SimpleNamespace(
        modules=SimpleNamespace(
            module=np.array(modules),
            marked=np.ones(count, np.bool_) if marked is None else np.array(marked),
            paths=tuple("abcdefgh"),
        ),
        step=np.array(step),
        steps=range(max(step) + 1),
        device=SimpleNamespace(allocations=SimpleNamespace(stack=np.zeros(count, np.uint32))),
    )


def test_layers_run_each_in_a_module_of_their_own() -> None:
    assert are_layers(passes([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]))
    assert not are_layers(passes([0, 1, 1, 1, 1, 1], [0, 1, 2, 3, 4, 5]))
    assert not are_layers(passes([0, 0], [0, 1]))


@pytest.mark.parametrize(
    ("modules", "marked", "is_inside"),
    [
        ([0, 1, 1, 1, 1, 1], None, True),  # an encoder, then a decoder's time steps
        ([0, 0, 0, 0, 0, 0], None, False),  # a model that a loop calls
        ([0, 1, 1, 1, 1, 1], [True, True, True, False, True, True], False),  # a loss in between
    ],
)
def test_time_steps_lie_in_one_pass(
    modules: list[int], marked: list[bool] | None, is_inside: bool
) -> None:
    view = passes(modules, [0, 1, 2, 3, 4, 5], marked)
    assert are_turns_of_one_pass(view) is is_inside


@pytest.mark.parametrize(
    ("modules", "marked", "follow"),
    [
        ([0, 1, 1, 1, 1, 1], None, True),
        ([0, 1, 1, 1, 1, 1], [True, True, True, False, True, True], True),  # a draw in between
        ([0, 0, 0, 0, 0, 0], None, False),
        ([0, 1, 0, 1, 0, 1], None, False),
        ([0, 0, 0], [False, False, False], False),
    ],
)
def test_time_steps_follow_what_was_encoded(
    modules: list[int], marked: list[bool] | None, follow: bool
) -> None:
    assert follow_other_modules(passes(modules, list(range(len(modules))), marked)) is follow
